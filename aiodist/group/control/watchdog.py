"""A thread that notices when the event loop of its process does not turn, and says so to the neighbours.

It needs the interpreter, not the loop: it runs while the loop's thread is in an evaluation, or writes a
checkpoint. It wakes ten times a second for some microseconds.

A loop that was closed with its groups open will never turn again: that is told as a loss, at once.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from aiodist.base.callers import Whose, short_path, whose
from aiodist.group.control.liveness import LoopProgress, Patience
from aiodist.group.control.plane import ControlPlane

_log = logging.getLogger("aiodist.group.control")

OFTEN = 0.1  # seconds from look to look; of a process that is killed so much is not written down

ENDED = "its event loop was closed while its groups were open"


class Watchdog:
    """The thread. Make it on the loop's thread; close it before the links are closed.

    It is a daemon: it keeps no process alive. After a fork the child has none.

    Args:
        loop: the loop that it watches.
        patience: when it speaks.
        plane: tells the neighbours.
        also: called ten times a second, with `plane.turns`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        patience: Patience,
        plane: ControlPlane,
        also: Callable[[int], object] = lambda turns: None,
    ) -> None:
        self._loop = loop
        self._plane = plane
        self._also = also
        self._watched = threading.get_ident()
        self._progress = LoopProgress(patience, time.monotonic())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aiodist watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it; returns when it has ended. May be called twice."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic() + self._progress.every
        while not self._over.wait(min(OFTEN, self._progress.every)):
            self._do_also()
            if time.monotonic() < due:
                continue
            if self._loop.is_closed():
                self._plane.say_ended(ENDED)
                return
            seconds = self._progress.tick(time.monotonic(), self._plane.turns)
            if seconds is not None:
                self._plane.say_blocked(seconds, line_of(self._watched))
            due = time.monotonic() + self._progress.every

    def _do_also(self) -> None:
        """Do what is done besides. Should it fail, the loop is watched all the same."""
        try:
            self._also(self._plane.turns)
        except Exception:
            _log.exception("this process cannot be observed any more")
            self._also = lambda turns: None


def line_of(thread: int) -> str:
    """The line of the user's program that a thread is in, 'train.py:41 in evaluate'; '' where it has ended.

    Of its calls the innermost one outside of libraries counts, or, where there is none, the innermost.
    """
    inner = sys._current_frames().get(thread)
    if inner is None:
        return ""
    frame: FrameType | None = inner
    while frame is not None and whose(frame.f_code.co_filename) is not Whose.program:
        frame = frame.f_back
    shown = inner if frame is None else frame
    code = shown.f_code
    return f"{short_path(code.co_filename)}:{shown.f_lineno} in {code.co_name}"
