"""What programs forget, by the line: awaits of operations whose handle was dropped, closes of dropped groups.

A dropped handle alone is no mistake yet: `drain()` may follow, which ends the operation as an await does. So
it is remembered by its line. When the group is closed, what no `drain()` followed is an error; a line that
goes on dropping handles is warned of before, once.

A dropped group is closed for the program, so a forgotten close is a warning of the world's end, and no error.
"""

from __future__ import annotations

import asyncio
import math
import os
import warnings
import weakref
from collections.abc import Callable
from typing import NamedTuple

from aiodist.base.errors import ForgottenAwait

PATIENCE = 2.0
"""Seconds from a line's first dropped handle after which its next one is warned of, unless `drain()` came."""

_MOST = 100  # lines that are told apart

_late: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Forgotten] = weakref.WeakKeyDictionary()


class Origin(NamedTuple):
    """The operation and the line that issued it; the file is '' where no line of the program did."""

    op: str
    file: str
    line: int

    def __str__(self) -> str:
        """' at train.py:12', the file as seen from here; '' where no line of the program did."""
        if not self.file:
            return ""
        try:
            near = os.path.relpath(self.file)
        except (OSError, ValueError):  # the working directory is gone
            near = self.file
        return f" at {self.file if near.startswith('..') else near}:{self.line}"


def never_awaited(origin: Origin) -> str:
    """The warning of a line that goes on forgetting to await."""
    return (
        f"{origin.op} was never awaited; write `await` before the call, or async_op=True to hold its handle"
    )


def never_closed(origin: Origin, count: int = 1, where: str = "") -> str:
    """The warning of a line that made groups which were dropped open.

    Args:
        count: how many.
        where: the line, where the text alone has to name it.
    """
    were = "a group was" if count == 1 else f"{count} groups were"
    return (
        f"{were} dropped and never closed that {origin.op}() made{where}; close each after its last use, "
        "by `async with` or `aclose()` (`close()` in the portal)"
    )


class Forgotten:
    """The forgotten awaits of one group, or of a loop once its groups are closed; or the forgotten closes.

    Args:
        loop: the group's.
        text: the warning of a line that goes on.
    """

    __slots__ = ("_counts", "_drained", "_excused", "_loop", "_over", "_since", "_text", "_warned")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        text: Callable[[Origin], str] = never_awaited,
    ) -> None:
        self._loop = loop
        self._text = text
        self._counts: dict[Origin, int] = {}
        self._since: dict[Origin, float] = {}
        self._warned: set[Origin] = set()
        self._drained = -math.inf
        self._over = self._excused = False

    def note(self, origin: Origin, issued: float, now: float) -> None:
        """Note that a handle was dropped. From any thread, and from `__del__`: it raises nothing of its own.

        Args:
            issued: when its operation was, in seconds.
            now: the time, on the same clock.
        """
        if issued <= self._drained or self._excused:
            return
        if self._over:
            if self._loop is not None:
                _late.setdefault(self._loop, Forgotten())._count(origin)
            self._warn(origin)
            return
        self._count(origin)
        if now - self._since.setdefault(origin, now) > PATIENCE:
            self._warn(origin)

    def add(self, counts: dict[Origin, int]) -> None:
        """Take over what another has counted."""
        for origin, count in counts.items():
            self._count(origin, count)

    def _count(self, origin: Origin, count: int = 1) -> None:
        if origin in self._counts or len(self._counts) < _MOST:
            self._counts[origin] = self._counts.get(origin, 0) + count

    def _warn(self, origin: Origin) -> None:
        if origin in self._warned:
            return
        self._warned.add(origin)
        warn(origin, self._text(origin))

    def drained(self, now: float) -> None:
        """Note that all that was issued until now has been waited for."""
        self._drained = now
        self._counts.clear()
        self._since.clear()

    def end(self, excused: bool = False) -> None:
        """Note that the group is closed: a handle that is dropped later is warned of at once.

        Args:
            excused: the program left the group by an error, which says enough.
        """
        self._over, self._excused = True, excused or self._excused

    def take(self) -> dict[Origin, int]:
        """How often each line forgot, once."""
        counts, self._counts = self._counts, {}
        return counts

    def __bool__(self) -> bool:
        return bool(self._counts)


def warn(origin: Origin, text: str) -> None:
    """Warn at the line of an origin."""
    warnings.warn_explicit(text, RuntimeWarning, origin.file or "<no line of the program>", origin.line)


def error_of(counts: dict[Origin, int]) -> ForgottenAwait | None:
    """The error that says what was forgotten; None where nothing was."""
    return ForgottenAwait([(*origin, count) for origin, count in counts.items()]) if counts else None


def taken_late(loop: asyncio.AbstractEventLoop) -> ForgottenAwait | None:
    """The error for handles that were dropped after their groups were closed, once."""
    late = _late.pop(loop, None)
    return None if late is None else error_of(late.take())
