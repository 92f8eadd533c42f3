"""Versions of torch: which were run, and what another one passes that is not known here.

torch is free to pass more in its next version, as 2.14 does when it makes a gloo group. What torch itself
passes and is not known here is passed over, with one debug line. What a program passes is refused: it may be
a slip.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Collection
from types import FrameType
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_log = logging.getLogger("aiodist.torch")

RUN = ("2.13.0", "2.14.1")
"""Versions with which all tests were run; `docs/torch.md` has the same table. Other releases of these series,
as 2.13.1, count as run, too."""

_OURS = __name__.rpartition(".")[0]


def pass_over(call: str, unknown: Collection[object], wrong: str = "{call} takes no {unknown}") -> None:
    """Pass over arguments of a call of torch's that are not known here; none is the usual case.

    Args:
        call: for people: 'broadcast'.
        unknown: names of keywords, or values that were passed by their place.
        wrong: text of the error.

    Raises:
        TypeError: the program has passed them, not torch.
    """
    if not unknown:
        return
    shown = ", ".join(map(str, unknown))
    if not _by_torch():
        raise TypeError(wrong.format(call=call, unknown=shown))
    _note(call, shown)


def takes_more(kind: type[T]) -> type[T]:
    """Have each function of a class that torch calls pass over keywords that it does not know.

    What is called for each operation takes them by itself: this costs a call more.
    """
    wrapped: dict[Any, Any] = {}
    for name, function in list(vars(kind).items()):
        if inspect.isfunction(function) and not name.startswith("__"):
            setattr(kind, name, wrapped.setdefault(function, _passing_over(function)))
    return kind


def _passing_over(function: Any) -> Any:
    known = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return function

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        if named and (unknown := named.keys() - known.keys()):
            pass_over(function.__name__, sorted(unknown))
            named = {name: value for name, value in named.items() if name in known}
        return function(*given, **named)

    return call


@functools.cache  # once in a process
def _note(call: str, shown: str) -> None:
    _log.debug("torch %s passes %s to %s, unknown here: passed over", torch.__version__, shown, call)


def _by_torch() -> bool:
    """Whether the function that has called ours is one of torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module != _OURS and not module.startswith(f"{_OURS}."):
            return module.partition(".")[0] == "torch"
        frame = frame.f_back
    return True  # C++, in a thread of its own


def is_run(version: str) -> bool:
    """Whether a version of torch, or another release of its series, was run."""
    return _series(version) in map(_series, RUN)


@functools.cache  # once in a process
def warn_of_another() -> None:
    """Warn where this torch was never run."""
    if not is_run(torch.__version__):
        _log.warning(
            "torch %s was never run with this version of aiodist; these were: %s",
            torch.__version__,
            ", ".join(RUN),
        )


def _series(version: str) -> list[str]:
    return version.partition("+")[0].split(".")[:2]
