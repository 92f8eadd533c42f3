"""The program's lines: which one called the library, and whose code is no program's."""

from __future__ import annotations

import asyncio
import enum
import functools
import os
import sys
import sysconfig
import warnings
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_HERE = str(Path(__file__).parent / "_")[:-1]
_BENCH = str(Path(__file__).parent / "bench" / "_")[:-1]  # it calls the library as programs do
_ASYNCIO = str(Path(asyncio.__file__).parent / "_")[:-1]


class Whose(enum.Enum):
    """Whose code a file holds."""

    program = "the user's"
    library = "Python's own, or installed"
    loop = "asyncio's"
    ours = "aiodist's"


def whose(file: str) -> Whose:
    """Whose code a file holds."""
    if file.startswith(_HERE):
        return Whose.program if file.startswith(_BENCH) else Whose.ours
    if file.startswith(_ASYNCIO):
        return Whose.loop
    return Whose.library if file.startswith(("<frozen ", *_libraries())) else Whose.program


@functools.cache
def _libraries() -> tuple[str, ...]:
    """The folders of Python's own code, and of what was installed."""
    paths = sysconfig.get_paths()
    return tuple(os.path.join(paths[name], "") for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def short_path(path: str) -> str:
    """A path relative to the current directory, if it lies below."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the directory is gone; another drive
        return path
    return path if relative.startswith(os.pardir) else relative


class Line(NamedTuple):
    """A line of a program."""

    file: str
    number: int


def calling_line() -> Line | None:
    """The line that called the library; None where none did, such as in a callback of the loop."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_ASYNCIO):
        return None
    return Line(frame.f_code.co_filename, frame.f_lineno)


def warn_of_line(message: str, line: Line | None, otherwise: str, source: object) -> None:
    """Warn, as a `__del__`, of what was done wrong at a line.

    Args:
        message: one line that says what.
        line: where, if that is known. Else it is the line that let go of the object, if it is the program's.
        otherwise: how to find the line, where neither is known.
        source: the object.
    """
    if line is not None:
        warnings.warn_explicit(message, RuntimeWarning, *line, source=source)
        return
    try:
        by = sys._getframe(2).f_code.co_filename
    except ValueError:  # the interpreter ends
        by = _HERE
    if by.startswith((_HERE, _ASYNCIO)):
        message = f"{message}. {otherwise}"
    warnings.warn(message, RuntimeWarning, stacklevel=3, source=source)
