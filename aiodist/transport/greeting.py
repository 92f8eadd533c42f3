"""A connection between ranks until it is handed to a link.

Everything here runs before the peer is known, under the caller's deadline.
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from aiodist.base.environment import Tls
from aiodist.base.errors import WireError
from aiodist.net.local_socket import credentials
from aiodist.net.opening import Opening
from aiodist.net.records import RecordSocket
from aiodist.net.refusals import address_of
from aiodist.net.tasks import settle
from aiodist.net.users import why_not
from aiodist.net.wire.handshake import Handshake, Identity


class Greeting:
    """One connection until it is handed to a link. Close it, unless it was released.

    Args:
        sock: connected, non-blocking; owned from now on.
        loop: the event loop.

    Attributes:
        leftover: bytes that arrived behind what was asked for.
        is_unix: whether the peer is on this host.
        peer_address: who it is, for a log.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self.leftover = b""
        self._loop = loop
        self._sock: socket.socket | RecordSocket | None = sock
        self.is_unix = sock.family == socket.AF_UNIX
        self.peer_address = address_of(sock)
        self._watched = -1

    async def shake(self, handshake: Handshake, tls: Tls | None = None) -> Identity:
        """Carry out a handshake; over TCP inside TLS where it is given.

        Raises:
            AuthenticationError, WireError: as `Opening.advance`.
            ConnectionError: the peer went away.
        """
        assert isinstance(self._sock, socket.socket)
        opening = Opening(self._sock, handshake, tls, self._send)
        self._sock = opening.sock
        while not opening.done:
            if not opening.advance():
                await self._readable()
        self._sock, self.leftover = opening.sock, opening.leftover
        assert handshake.peer is not None
        return handshake.peer

    def why_not(self, vouched: bool) -> str:
        """The kernel's objection to the process at the other end: see `users.why_not`."""
        assert self._sock is not None
        return why_not(self._sock, vouched)

    def peer_pid(self) -> int | None:
        """The process at the other end, as the kernel says; None if it is not on this host."""
        if not isinstance(self._sock, socket.socket) or not self.is_unix:
            return None
        pid = credentials(self._sock)[0]
        return pid if pid > 0 else None  # 0: of another namespace

    def release(self) -> socket.socket:
        """The socket, which is the caller's from now on; over TCP what behaves like one (`net.records`)."""
        sock, self._sock = self._sock, None
        assert sock is not None
        return cast("socket.socket", sock)

    def close(self) -> None:
        """Close what was not released. May be called twice."""
        self._unwatch()
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _send(self, data: bytes) -> None:
        # A few hundred bytes on a fresh connection always fit.
        if self._sock is not None and self._sock.send(data) != len(data):
            raise WireError("the peer does not read its handshake")

    async def _readable(self) -> None:
        assert self._sock is not None
        ready: asyncio.Future[None] = self._loop.create_future()
        self._watched = self._sock.fileno()
        self._loop.add_reader(self._watched, settle, ready, None)
        try:
            await ready
        finally:
            self._unwatch()

    def _unwatch(self) -> None:
        # Once only, and before the socket is closed: the number may soon be another socket's.
        watched, self._watched = self._watched, -1
        if watched >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(watched)
