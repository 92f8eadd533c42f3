"""Admission: connections wait until they send something. The store's listener and a rank's have one each.

A connection that says nothing costs a descriptor and an entry in a table, no task and no timer, for
`PATIENCE` seconds at most. When the table is full the one that has been silent for longest goes: a peer of
the job speaks within a moment of connecting, so a crowd of silent connections does not keep it out.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from aiodist.net.alarm import Alarm

PATIENCE = 5.0
"""Seconds that an unauthenticated peer has, from connecting to the end of its handshake."""

MOST = 1024
"""Unauthenticated connections in each of the two tables (silent, shaking hands) of a listener, at most; see
`places`."""

Enter = Callable[[socket.socket, float], None]
Turned = Callable[[socket.socket, str], None]


def places() -> int:
    """The most unauthenticated connections of each kind that a listener keeps: `MOST`, or an eighth of the
    descriptors that this process may have, so that they never take those of the job."""
    try:
        import resource

        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError, ValueError):
        return MOST // 8
    return max(16, min(MOST, soft // 8)) if soft > 0 else MOST


class Admission:
    """Silent connections, in order of arrival.

    Args:
        loop: the event loop.
        enter: called with a connection that has something to say, which it owns, and the loop time until
            which its handshake must be done.
        turned_away: called with a connection that is about to be closed, and why.
        most: places; None: `places()`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, enter: Enter, turned_away: Turned, most: int | None = None
    ) -> None:
        self._loop = loop
        self._enter = enter
        self._turned_away = turned_away
        self._most = places() if most is None else most
        self._waiting: dict[int, tuple[socket.socket, float]] = {}  # by descriptor
        self._alarm = Alarm(loop, self._expire)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sock: socket.socket) -> None:
        """Add a new, non-blocking connection, owned from now on."""
        deadline = self._loop.time() + PATIENCE
        if _speaks(sock):  # most peers: a turn of the loop less
            self._enter(sock, deadline)
            return
        if len(self._waiting) >= self._most:
            self._drop(next(iter(self._waiting)), f"more than {self._most} connections say nothing")
        fd = sock.fileno()
        self._waiting[fd] = (sock, deadline)
        self._loop.add_reader(fd, self._spoke, fd)
        self._alarm.by(deadline)

    def close(self) -> None:
        """Close them all. May be called twice."""
        self._alarm.set()
        while self._waiting:
            fd, (sock, _deadline) = self._waiting.popitem()
            if not self._loop.is_closed():
                self._loop.remove_reader(fd)
            sock.close()

    def _spoke(self, fd: int) -> None:
        if fd not in self._waiting:  # dropped in this very turn
            return
        sock, deadline = self._waiting.pop(fd)
        self._loop.remove_reader(fd)
        self._enter(sock, deadline)

    def _expire(self) -> None:
        now = self._loop.time()
        for fd, (_sock, deadline) in list(self._waiting.items()):
            if deadline > now:  # so have all behind it
                self._alarm.set(deadline)
                return
            self._drop(fd, f"it said nothing for {PATIENCE:g} s")

    def _drop(self, fd: int, why: str) -> None:
        sock, _deadline = self._waiting.pop(fd)
        self._loop.remove_reader(fd)
        self._turned_away(sock, why)
        sock.close()


def _speaks(sock: socket.socket) -> bool:
    try:
        sock.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        pass  # gone already: its reader will find out
    return True
