"""A question to a process: an empty file beside its recorder, which the asker makes and the process removes.

So nobody writes to another process's memory. The process removes it before it looks at what it does: who
finds a question there need not put another one, since what is answered to it is true of a later moment.
"""

from __future__ import annotations

import os

from aiodist.observe.recorder.records import ASKED, Folders

Mark = tuple[int, int]
"""What tells a question from others."""

_TRIES = 100


def put(folder: Folders, name: str) -> Mark:
    """Ask the process of the recorder of this name.

    Raises:
        OSError: it cannot be asked.
    """
    for _ in range(_TRIES):
        try:
            handle = folder.file(name + ASKED, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            found = put_before(folder, name)
            if found is not None:
                return found
        else:
            try:
                return _mark(os.fstat(handle))
            finally:
                os.close(handle)
    raise OSError(f"{name} cannot be asked")


def put_before(folder: Folders, name: str) -> Mark | None:
    """The question that the process has not taken; None: there is none."""
    try:
        return _mark(folder.stat(name + ASKED))
    except FileNotFoundError:
        return None


def take(folder: Folders, name: str) -> Mark | None:
    """Take the question, if there is one, to answer it."""
    found = put_before(folder, name)
    if found is not None:
        folder.remove(name + ASKED)
    return found


def _mark(facts: os.stat_result) -> Mark:
    return facts.st_ino, facts.st_mtime_ns
