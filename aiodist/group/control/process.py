"""Watching the processes of this host: a pidfd becomes readable in the moment its process ends.

Earlier and surer than the end of a connection: a child that C code has forked may hold a dead rank's sockets.
Linux only; elsewhere the connections alone tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable

from aiodist.group.control.sentries import is_exiting, open_thread
from aiodist.net.forks import own

_PAUSES = (0.0005, 0.001, 0.002, 0.005, 0.01)  # seconds between checks of a process whose sentry is gone


class ProcessWatch:
    """A watch on processes of this host, which calls back once when one has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._fds: dict[int, int] = {}  # by pid; by -tid for sentries
        own(self, lambda watch: list(watch._fds.values()))

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

    def watch_sentries(self, pid: int, tids: Iterable[int], exits: Callable[[int], object]) -> None:
        """Watch threads of `pid`, too, where that can be done; `exits(pid)` is called if one ends because the
        process does, which is before it has ended."""
        for tid in tids:
            with contextlib.suppress(AttributeError, OSError, TypeError, OverflowError):
                fd = self._fds[-tid] = open_thread(tid)
                self._loop.add_reader(fd, self._sentry_gone, pid, tid, exits)

    def _sentry_gone(self, pid: int, tid: int, exits: Callable[[int], object], attempt: int = 0) -> None:
        if not attempt:
            self._drop(-tid)
        if pid not in self._fds:
            return  # it has ended, or is not watched any more
        if is_exiting(pid):
            exits(pid)
        elif attempt < len(_PAUSES):  # it is killed in a moment, or it has let its sentries go
            self._loop.call_later(_PAUSES[attempt], self._sentry_gone, pid, tid, exits, attempt + 1)

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
        for watched in list(self._fds):
            self._drop(watched)
