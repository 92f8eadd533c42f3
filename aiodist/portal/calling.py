"""What belongs to a thread that asks the loop for something: it holds while the loop does as asked."""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import Any

from aiodist.backends.cuda.streams import current_streams
from aiodist.group import ProcessGroup


class Calling:
    """The streams of the calling thread, on which what it passes is computed, and the line that it is in.

    Made in that thread; used by `with` on the loop.

    Args:
        world: of the portal; None: there is none yet.
    """

    __slots__ = ("_line", "_lines", "_stack", "_streams")

    def __init__(self, world: ProcessGroup | None) -> None:
        self._streams: list[contextlib.AbstractContextManager[Any]] = []
        self._lines = None
        if world is not None:
            if world.device is not None:
                self._streams = current_streams(world.device)
            self._lines = world._core.recorder.lines
            self._line = self._lines.find(sys._getframe(1))

    def __enter__(self) -> None:
        if self._streams:
            self._stack = contextlib.ExitStack()
            for stream in self._streams:
                self._stack.enter_context(stream)
        if self._lines is not None:
            self._lines.asked_by = self._line

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lines is not None:
            self._lines.asked_by = 0
        if self._streams:
            self._stack.close()
