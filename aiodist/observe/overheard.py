"""Errors that nobody waits for: noted in the recorder on their way to the loop, or to the process's end."""

from __future__ import annotations

import asyncio
import atexit
import sys
import traceback
import weakref
from typing import Any

from aiodist.base.callers import Whose, whose
from aiodist.observe.recorder import Recorder
from aiodist.observe.recorder.layout import RING_PLACES
from aiodist.observe.words import reported


class Overheard:
    """A loop's exception handler, around the one that it has.

    Args:
        loop: which; on its thread.
        recorder: where the errors are noted.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, recorder: Recorder) -> None:
        self._loop = loop
        self._recorder = recorder
        self._before = loop.get_exception_handler()
        self._handler = self._note
        loop.set_exception_handler(self._handler)
        _open.add(self)

    def close(self) -> None:
        """Give the loop its handler back, unless it has got another one meanwhile. May be called twice."""
        _open.discard(self)
        for one in (*_open, self):
            one._skip_closed()  # who took its place keeps it no longer
        if self._loop.get_exception_handler() is self._handler:
            self._loop.set_exception_handler(self._before)

    def _skip_closed(self) -> None:
        """Go on to the handler below those that are closed."""
        while isinstance(below := getattr(self._before, "__self__", None), Overheard) and below not in _open:
            self._before = below._before

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        what = reported(context.get("message") or "an error in a callback")
        self._recorder.event(f"{what}: {describe(error)}" if isinstance(error, BaseException) else what)
        if self._before is not None:
            self._before(loop, context)
        else:
            loop.default_exception_handler(context)

    def last_words(self, error: BaseException) -> None:
        """Note the exception that ends the process."""
        self._recorder.event(f"the program ended by {describe(error)}", trouble=True)
        self._recorder.flush(RING_PLACES)


_open: weakref.WeakSet[Overheard] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    error = getattr(sys, "last_value", None)
    if error is not None:
        for one in list(_open):
            one.last_words(error)


def describe(error: BaseException) -> str:
    """'OSError: No space left on device (save.py:12 in save)': with the innermost line of the program."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if whose(frame.filename) is Whose.program
    ]
    where = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
