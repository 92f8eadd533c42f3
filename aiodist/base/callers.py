"""Whose code a file holds: the program's, the library's or somebody else's."""

from __future__ import annotations

import asyncio
import enum
import functools
import os
import sysconfig
from pathlib import Path

_HERE = str(Path(__file__).parents[1] / "_")[:-1]
_BENCH = str(Path(__file__).parents[1] / "cli" / "bench" / "_")[:-1]  # it calls the library as programs do
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
    if file.endswith(".pyx") and "aiodist/_engine/" in file:  # compiled from files that are not here, perhaps
        return Whose.ours
    if file.startswith((_ASYNCIO, "uvloop/")):  # uvloop is compiled from files that are not here
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
