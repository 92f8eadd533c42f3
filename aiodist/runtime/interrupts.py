"""Ctrl-C in a synchronous step of a coroutine, under `run` or `asyncio.run`.

asyncio's first Ctrl-C cancels the main task, which is seen at its next await: a long step without one goes
on, and nothing shows where it is. So a loop that has not turned for a while after a Ctrl-C gets another
one, which raises KeyboardInterrupt in the step.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeGuard

PATIENCE = 0.5
"""Seconds from Ctrl-C for the loop to turn. What the program does after it was cancelled has no limit."""


class Interrupts:
    """The handler of SIGINT that does so, in the place of a Runner's. One that the program has set is left
    alone.

    Make it in the main thread: `begin` on the Runner's loop, `end` there or when the Runner is closed.
    """

    def __init__(self) -> None:
        self._turned = threading.Event()  # since the first Ctrl-C
        self._pending = False  # a Ctrl-C of which the task has not been told
        self._before: Any = None
        self._cancels: Callable[[int, FrameType | None], object] | None = None  # the Runner's handler

    def begin(self, before: Any = None) -> None:
        """Take the place of the Runner's handler, if that is the one.

        Args:
            before: the handler that `end` sets; None: the Runner's.
        """
        handler = signal.getsignal(signal.SIGINT)
        if _is_runners(handler) and threading.current_thread() is threading.main_thread():
            self._loop, self._cancels = asyncio.get_running_loop(), handler
            self._before = handler if before is None else before
            signal.signal(signal.SIGINT, self._handle)

    def end(self) -> None:
        """Give its place back. May be called twice, and without `begin`."""
        self._pending = False
        self._turned.set()
        if self._cancels is not None and signal.getsignal(signal.SIGINT) in (self._handle, self._cancels):
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        assert self._cancels is not None
        if self._loop.is_closed():  # with the group open: nobody has called `end`
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        if self._pending:  # the task is not cancelled besides: it may await what ends its groups
            self._pending = False
            self._turned.set()
            raise KeyboardInterrupt
        if self._turned.is_set():
            self._cancels(signum, frame)  # as if this were not here
            return
        self._pending = True
        self._loop.call_soon_threadsafe(self._tell)
        threading.Thread(target=self._again, name="aiodist interrupt", daemon=True).start()

    def _tell(self) -> None:
        self._turned.set()
        if self._pending and self._cancels is not None:
            self._pending = False
            self._cancels(signal.SIGINT, None)

    def _again(self) -> None:
        """Interrupt the main thread again, unless its loop turns in time."""
        ident = threading.main_thread().ident
        if not self._turned.wait(PATIENCE) and ident is not None:
            signal.pthread_kill(ident, signal.SIGINT)


def _is_runners(handler: Any) -> TypeGuard[Callable[[int, FrameType | None], object]]:
    function = handler.func if isinstance(handler, functools.partial) else None
    return isinstance(getattr(function, "__self__", None), asyncio.Runner)
