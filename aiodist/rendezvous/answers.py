"""Checks of all that a store may say beside answers (`methods.check_answer`). A client hands on nothing else.

The bytes are read and bounded by then (`wire.messages`); this is about what they mean.
"""

from __future__ import annotations

from typing import Any

from aiodist.base.errors import WireError
from aiodist.base.sanitize import one_line

_LONGEST = 4000  # characters of a failure


def check_failure(value: Any) -> tuple[str, str, str, list[int]]:
    """Kind, message, hint and what is missing of a failure; `WireError` if it is none."""
    match value:
        case [str(kind), str(message), str(hint), list(missing)] if all(
            type(rank) is int for rank in missing
        ):
            # Names of keys are in there, which any member may have chosen.
            return kind, one_line(message, _LONGEST), one_line(hint, _LONGEST), missing
    raise WireError("the store's failure says nothing that can be read")


def check_news(value: Any) -> list[Any]:
    """News of a watch, as in `events.Push`; `WireError` if they are none."""
    if type(value) is list and all(item is None or _is_news(item) for item in value):
        return value
    raise WireError("the store's news say nothing that can be read")


def words_of(value: Any) -> str:
    """The reason that a store gives for its end; '' where it is none."""
    return one_line(value, 200) if type(value) is str else ""


def _is_news(item: Any) -> bool:
    match item:
        case [str(), (None | bytes()), int()]:
            return True
    return False
