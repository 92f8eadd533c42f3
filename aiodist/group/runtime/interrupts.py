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
from typing import Any

PATIENCE = 0.5
"""Seconds from Ctrl-C for the loop to turn. What the program does after it was cancelled has no limit."""


class Interrupts:
    """The handler of SIGINT that does so, in the place of a Runner's. One that the program has set is left
    alone.

    It is in place until the Runner's main task is done, and again in the Runner's next run. After a
    KeyboardInterrupt Python's own is in place until the loop turns, so another Ctrl-C raises at once.

    Make it in the main thread: `begin` on the Runner's loop, `end` there or when the Runner is closed.
    """

    _loop: asyncio.AbstractEventLoop
    _task: asyncio.Task[Any]  # the main task of the run
    _cancels: Callable[[int, FrameType | None], object]  # the Runner's handler in that run

    def __init__(self) -> None:
        self._begun = self._over = False
        self._pending: threading.Event | None = None  # a Ctrl-C of which the task has not been told
        self._again = False  # the next signal is not the user's
        self._cancelled = False  # the task has been cancelled: further ones are as if this were not here
        self._raised = False  # since the loop last turned

    def begin(self) -> None:
        """Take the place of the Runner's handler, if that is the one."""
        handler = signal.getsignal(signal.SIGINT)
        task = _main_task(handler)
        main = threading.current_thread() is threading.main_thread()
        if task is None or task.done() or self._over or not main:
            return
        self._loop, self._task, self._cancels = asyncio.get_running_loop(), task, handler  # type: ignore[assignment]
        self._begun, self._cancelled = True, False
        signal.signal(signal.SIGINT, self._handle)
        task.add_done_callback(self._done)

    def end(self) -> None:
        """Give its place back. May be called twice, and without `begin`."""
        self._over = True
        if self._begun:
            self._give_back()
            if self._loop.is_running():
                self._turn()
            self._take_pending()

    def _give_back(self) -> None:
        if signal.getsignal(signal.SIGINT) in (self._handle, self._cancels):
            runs = self._loop.is_running() and not self._task.done()
            signal.signal(signal.SIGINT, self._cancels if runs else signal.default_int_handler)

    def _done(self, task: asyncio.Task[Any]) -> None:
        """The run ends. The loop stops now, uvloop's a turn later: one of the calls is in the next run."""
        if task is self._task:
            self._give_back()
            self._loop.call_soon(self._turn)
            self._loop.call_soon(self._loop.call_soon, self._turn)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        again, self._again = self._again, False
        if again and (self._pending is None or asyncio.current_task(self._loop) is None):
            return  # the step has ended meanwhile, and the loop turns
        if not self._loop.is_running():  # an exception has ended the run
            self._give_back()
            raise KeyboardInterrupt
        if self._pending is not None:  # the task is not cancelled besides: it may await what ends its groups
            self._take_pending()
            self._raised = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        if self._cancelled:
            self._give_back()
            self._cancels(signum, frame)
            return
        self._pending = threading.Event()
        self._loop.call_soon_threadsafe(self._turn)
        threading.Thread(
            target=self._interrupt, args=(self._pending,), name="aiodist interrupt", daemon=True
        ).start()

    def _take_pending(self) -> bool:
        """Whether a Ctrl-C was pending, which is not from now on."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.set()
        return pending is not None

    def _turn(self) -> None:
        """Called when the loop turns after a Ctrl-C, or in another run."""
        if self._take_pending():
            self._cancelled = True
            if self._task.done():
                self._give_back()
            self._cancels(signal.SIGINT, None)
        raised, self._raised = self._raised and not self._task.done(), False
        if raised and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._cancels if self._over else self._handle)
        self.begin()

    def _interrupt(self, turned: threading.Event) -> None:
        """Interrupt the main thread again, unless its loop turns in time."""
        ident = threading.main_thread().ident
        if not turned.wait(PATIENCE) and ident is not None and self._pending is turned:
            self._again = True
            signal.pthread_kill(ident, signal.SIGINT)


def _main_task(handler: Any) -> asyncio.Task[Any] | None:
    """The task that a Runner's handler cancels; None where it is another handler."""
    runner = getattr(handler.func, "__self__", None) if isinstance(handler, functools.partial) else None
    task: asyncio.Task[Any] | None = None
    if isinstance(runner, asyncio.Runner):
        task = handler.keywords.get("main_task")
    return task
