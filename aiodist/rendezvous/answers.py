"""What a store may answer. A client hands on nothing else: who asked gets what the call says, or an error.

The bytes are read and bounded by then (`wire.messages`); this is about what they mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiodist.errors import WireError
from aiodist.sanitize import one_line

_LONGEST = 4000  # characters of a failure

Fits = Callable[[list[Any], Any], bool]
"""(arguments of the request, the answer) → whether the one can be the other."""


def _is(kind: type) -> Fits:
    return lambda _args, value: type(value) is kind


def _all_are(kind: type, count: Callable[[list[Any]], int] | None = None) -> Fits:
    kinds = {kind}

    def fits(args: list[Any], value: Any) -> bool:
        return (
            type(value) is list
            and kinds.issuperset(map(type, value))
            and (count is None or len(value) == count(args))
        )

    return fits


_NOTHING, _BYTES, _INT, _BOOL = _is(type(None)), _is(bytes), _is(int), _is(bool)

_FITS: dict[str, Fits] = {
    "set": _NOTHING,
    "multi_set": _NOTHING,
    "multi_get": _all_are(bytes, lambda args: len(args[0])),
    "wait": _NOTHING,
    "check": _BOOL,
    "add": _INT,
    "append": _NOTHING,
    "compare_set": _BYTES,
    "claim": _BYTES,
    "delete_key": _BOOL,
    "list_keys": _all_are(str),
    "num_keys": _INT,
    "fence": _INT,
    "lease_grant": _INT,
    "lease_renew": _BOOL,
    "lease_set": _NOTHING,
    "lease_claim": _BYTES,
    "lease_end": _BOOL,
    "gather": _all_are(bytes, lambda args: int(args[2])),
}


def check_answer(method: str, args: list[Any], value: Any) -> None:
    """`WireError` unless `value` can be the answer to this request."""
    fits = _FITS.get(method)
    if fits is not None and not fits(args, value):
        raise WireError(f"the store answers {method} with a {type(value).__name__} that cannot be its answer")


def check_failure(value: Any) -> tuple[str, str, str, list[int]]:
    """Kind, message, hint and missing ranks of a failure; `WireError` if it is none."""
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
    """Why a store ends, in its words; '' where these are none."""
    return one_line(value, 200) if type(value) is str else ""


def _is_news(item: Any) -> bool:
    match item:
        case [str(), (None | bytes()), int()]:
            return True
    return False
