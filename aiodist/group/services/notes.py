"""What this process logs of its handlers' errors. Their texts may be another process's.

So each error is one line of bounded length, followed by lines of this process's own program, and no handler
fills the log: `AT_ONCE` errors of it, then one in `EVERY` seconds, which says how many were left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Iterator
from types import TracebackType

from aiodist.base.callers import Whose, whose
from aiodist.base.errors import CallError, GroupBroken, GroupClosed
from aiodist.base.sanitize import one_line
from aiodist.group.services.outcomes import described

AT_ONCE = 10
EVERY = 1.0  # seconds

_FRAMES = 20  # the last ones of an error
_ERRORS = 6  # an error, those that it follows from, and those in a group

_log = logging.getLogger("aiodist.group.services")


class Notes:
    """The log of one process's services.

    Args:
        loop: the event loop; its clock counts.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rates: dict[str, _Rate] = {}

    def raised(self, name: str, error: BaseException) -> None:
        """Note that a handler raised. What another rank or the group did to it is no mistake of it."""
        level = logging.DEBUG if isinstance(error, CallError | GroupBroken | GroupClosed) else logging.ERROR
        self._say(level, name, f"handler {name} raised, and its caller is told: ", error)

    def exits(self, name: str, error: BaseException) -> None:
        """Note that a handler ends its process: nothing else says so."""
        self._say(logging.ERROR, name, f"handler {name} called exit, which ends this process: ", error)

    def _say(self, level: int, name: str, words: str, error: BaseException) -> None:
        if not _log.isEnabledFor(level):
            return
        rate = self._rates.get(name)
        if rate is None:
            rate = self._rates[name] = _Rate()
        left_out = rate.left_out(self._loop.time())
        if left_out is None:
            return
        more = f" ({left_out} more errors like this were left out)" if left_out else ""
        with contextlib.suppress(Exception):  # a log that fails must not end the connection that is read
            lines_of = [_line(error), *_lines(error)]
            _log.log(level, "%s%s%s", words, lines_of[0] + more, "".join("\n" + one for one in lines_of[1:]))


class _Rate:
    """How often something is said."""

    def __init__(self) -> None:
        self._room = float(AT_ONCE)
        self._at = 0.0
        self._left_out = 0

    def left_out(self, now: float) -> int | None:
        """How often it was not said since it was said last; None: it is not said now either."""
        self._room = min(float(AT_ONCE), self._room + (now - self._at) / EVERY)
        self._at = now
        if self._room < 1:
            self._left_out += 1
            return None
        self._room -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def _line(error: BaseException) -> str:
    return one_line(": ".join(filter(None, described(error))))


def _lines(error: BaseException) -> Iterator[str]:
    """The lines of the program that led to an error, and to those before it."""
    found: list[tuple[str, BaseException]] = [("", error)]
    for number in range(_ERRORS):
        if number >= len(found):
            return
        how, one = found[number]
        if how:
            yield f"{how} {_line(one)}"
        yield from (line for lines in _frames(one.__traceback__) for line in lines.rstrip("\n").split("\n"))
        before = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        if before is not None and all(before is not other for _, other in found):
            found.append(("after" if one.__cause__ is None else "because of", before))
        if isinstance(one, BaseExceptionGroup):
            found.extend(("in it:", inner) for inner in one.exceptions[:_ERRORS])


def _frames(trace: TracebackType | None) -> list[str]:
    """The frames from the handler's own lines on."""
    while trace is not None and whose(trace.tb_frame.f_code.co_filename) is Whose.ours:
        trace = trace.tb_next
    return traceback.format_list(traceback.extract_tb(trace, limit=-_FRAMES))
