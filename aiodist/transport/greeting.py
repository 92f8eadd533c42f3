"""Opening a connection: the handshake over a raw socket.

Everything here runs before the peer is known, under the caller's deadline: what is read is bounded by the
handshake's own limits.
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from aiodist.environment import Tls
from aiodist.errors import AiodistError, WireError
from aiodist.net.local_socket import credentials
from aiodist.net.records import RecordSocket
from aiodist.net.refusals import address_of
from aiodist.net.sealed import SealedSocket
from aiodist.net.secure import SecureSocket
from aiodist.net.users import why_not
from aiodist.wire.handshake import Handshake, Identity

_READ = 4096


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
        self._sock: socket.socket | SecureSocket | None = sock
        self.is_unix = sock.family == socket.AF_UNIX
        self.peer_address = address_of(sock)
        self._keys = (b"", b"")
        self._watched = -1

    async def secure(self, tls: Tls, *, is_server: bool) -> bytes:
        """Put TLS on a TCP connection; returns what `Handshake.bind` takes.

        Raises:
            AuthenticationError, WireError: as `SecureSocket.shake_hands`.
            ConnectionError: the peer went away.
        """
        assert isinstance(self._sock, socket.socket)
        sock = self._sock = SecureSocket(self._sock, tls, is_server=is_server)
        while not sock.shake_hands():
            await self._readable(sock)
        return sock.binding

    async def shake(self, handshake: Handshake) -> Identity:
        """Carry out a handshake.

        Raises:
            AuthenticationError, WireError: as `Handshake.receive`; a refusal was sent to the peer.
            ConnectionError: the peer went away.
        """
        try:
            await self._send(handshake.data_to_send())
            while not handshake.done:
                handshake.receive(await self._receive())
                await self._send(handshake.data_to_send())
        except AiodistError:
            refusal = handshake.data_to_send()
            if refusal and self._sock is not None:
                try:
                    self._sock.send(refusal)
                except OSError:
                    pass
            raise
        self.leftover = handshake.leftover
        self._keys = handshake.keys
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
        """The socket, which is the caller's from now on; over TCP what behaves like one, and encrypts
        (`SecureSocket`) or authenticates (`SealedSocket`, which takes `leftover` with it)."""
        sock: socket.socket | RecordSocket | None
        sock, self._sock = self._sock, None
        assert sock is not None
        if isinstance(sock, socket.socket) and not self.is_unix and self._keys[0]:
            sock, self.leftover = SealedSocket(sock, self._keys, self.leftover), b""
        return cast("socket.socket", sock)

    def close(self) -> None:
        """Close what was not released. May be called twice."""
        self._unwatch()
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    async def _send(self, data: bytes) -> None:
        # A few hundred bytes on a fresh connection always fit.
        if data and self._sock is not None and self._sock.send(data) != len(data):
            raise WireError("the peer does not read its handshake")

    async def _receive(self) -> bytes:
        sock = self._sock
        assert sock is not None
        if not (isinstance(sock, SecureSocket) and sock.pending()):
            await self._readable(sock)
        try:
            data = sock.recv(_READ)  # the kernel closes descriptors that came beside it
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionResetError("it closed the connection during the handshake")
        return data

    async def _readable(self, sock: socket.socket | SecureSocket) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._watched = sock.fileno()
        self._loop.add_reader(self._watched, _wake, ready)
        try:
            await ready
        finally:
            self._unwatch()

    def _unwatch(self) -> None:
        # Once only, and before the socket is closed: the number may soon be another socket's.
        watched, self._watched = self._watched, -1
        if watched >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(watched)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
