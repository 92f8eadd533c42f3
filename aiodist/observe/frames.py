"""Calls as lines, 'train.py:41 in evaluate'."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import NamedTuple

from aiodist.base.callers import Whose, short_path, whose


class FrameCall(NamedTuple):
    """A call that a thread is in, or a coroutine."""

    file: str
    line: int
    function: str

    @classmethod
    def of(cls, frame: FrameType) -> FrameCall:
        """That of a frame."""
        code = frame.f_code
        return cls(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name)

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.line} in {self.function}"


def calls_of(frame: FrameType | None) -> Iterator[FrameCall]:
    """The calls that have led to a frame, the innermost first."""
    while frame is not None:
        yield FrameCall.of(frame)
        frame = frame.f_back


def telling(calls: Iterable[FrameCall]) -> tuple[str, ...]:
    """Those of the program, and the innermost, whosever it is; as lines."""
    return tuple(
        str(call) for depth, call in enumerate(calls) if depth == 0 or whose(call.file) is Whose.program
    )


def stacks(first: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the threads of this process do: the lines of one, and those of the others that run the program.

    Args:
        first: the one.
    """
    frames = sys._current_frames()
    own = telling(calls_of(frames.pop(first, None)))
    others = {thread: list(calls_of(frame)) for thread, frame in frames.items()}
    return own, beside(others)


def beside(threads: dict[int, list[FrameCall]]) -> tuple[str, ...]:
    """Lines of the threads that are in a call of the program's."""
    lines: list[str] = []
    for thread, calls in threads.items():
        if any(whose(call.file) is Whose.program for call in calls):
            lines += (f"thread {thread:#x}", *(f"  {line}" for line in telling(calls)))
    return tuple(lines)


def _short(path: str) -> str:
    """The end of the path that says enough: of a library's file, its folder and its name."""
    return short_path(path) if whose(path) is Whose.program else "/".join(path.split("/")[-2:])
