"""Watching the processes of this host: a pidfd becomes readable in the moment its process ends.

Earlier and surer than the end of a connection: a forked child may hold a dead rank's sockets open.
Linux only; elsewhere the connections alone tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable


class ProcessWatch:
    """Calls back once when a process of this host has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._fds: dict[int, int] = {}

    def watch(self, pid: int, ended: Callable[[int], object]) -> bool:
        """Watch `pid`; `ended(pid)` is called on the loop. False where that cannot be done."""
        if pid in self._fds:
            return True
        try:
            fd = os.pidfd_open(pid)
        except (AttributeError, OSError):
            return False
        self._fds[pid] = fd
        self._loop.add_reader(fd, self._ended, pid, ended)
        return True

    def _ended(self, pid: int, ended: Callable[[int], object]) -> None:
        self._drop(pid)
        ended(pid)

    def _drop(self, pid: int) -> None:
        fd = self._fds.pop(pid, None)
        if fd is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed already
                self._loop.remove_reader(fd)
            os.close(fd)

    def close(self) -> None:
        """Stop watching."""
        for pid in list(self._fds):
            self._drop(pid)
