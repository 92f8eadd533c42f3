"""Forgotten awaits: operations whose handle was dropped and never awaited, by the line that issued them.

A dropped handle alone is no mistake yet: `drain()` may follow, which ends the operation as an await does. So
it is remembered by its line. When the group is closed, what no `drain()` followed is an error; a line that
goes on dropping handles is warned of before, once.
"""

from __future__ import annotations

import asyncio
import math
import os
import warnings
import weakref
from typing import NamedTuple

from aiodist.errors import ForgottenAwait

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


class Forgotten:
    """The forgotten awaits of one group, or of a loop once its groups are closed.

    Args:
        loop: the group's.
    """

    __slots__ = ("_counts", "_drained", "_excused", "_loop", "_over", "_since", "_warned")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
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

    def _count(self, origin: Origin) -> None:
        if origin in self._counts or len(self._counts) < _MOST:
            self._counts[origin] = self._counts.get(origin, 0) + 1

    def _warn(self, origin: Origin) -> None:
        if origin in self._warned:
            return
        self._warned.add(origin)
        text = (
            f"{origin.op} was never awaited; write `await` before the call, "
            "or async_op=True to hold its handle"
        )
        warnings.warn_explicit(text, RuntimeWarning, origin.file or "<no line of the program>", origin.line)

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


def error_of(counts: dict[Origin, int]) -> ForgottenAwait | None:
    """The error that says what was forgotten; None where nothing was."""
    return ForgottenAwait([(*origin, count) for origin, count in counts.items()]) if counts else None


def taken_late(loop: asyncio.AbstractEventLoop) -> ForgottenAwait | None:
    """The error for handles that were dropped after their groups were closed, once."""
    late = _late.pop(loop, None)
    return None if late is None else error_of(late.take())
