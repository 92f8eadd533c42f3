"""The opening of a connection, at either end: TLS where it is on, the handshake, then records.

The owner of a connection calls `advance` whenever there is something to read. How much an unauthenticated
peer may send is bounded by `secure.HELLO_LIMIT` and `wire.handshake`; how long it may take, by the owner.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from aiodist.base.environment import Tls
from aiodist.base.errors import AiodistError
from aiodist.net.records import RecordSocket
from aiodist.net.sealed import SealedSocket
from aiodist.net.secure import SecureSocket
from aiodist.net.wire.handshake import Handshake

_READ = 4096


class HungUp(ConnectionResetError):
    """The peer closed the connection before the handshake was done."""

    def __init__(self) -> None:
        super().__init__("it closed the connection during the handshake")


class Opening:
    """One connection until its peer is proven.

    Args:
        sock: connected, non-blocking; not owned, though a layer may be put on it.
        handshake: fresh, of the right role.
        tls: TLS comes first over TCP, and binds the handshake; None: it does not.
        send: called with bytes that must leave now, as a whole.

    Attributes:
        sock: as given, or the layer on it: TLS from the start, tags (`SealedSocket`) behind the handshake.
        done: the peer is proven.
        heard: it has said something, or was to begin with TLS.
        leftover: bytes that came behind the handshake, once it is done, without those that `sock` holds.
    """

    def __init__(
        self, sock: socket.socket, handshake: Handshake, tls: Tls | None, send: Callable[[bytes], object]
    ) -> None:
        self._far = sock.family != getattr(socket, "AF_UNIX", None)
        self._secure: SecureSocket | None = None  # until its own handshake is done
        if tls is not None and self._far:
            self._secure = SecureSocket(sock, tls, is_server=handshake.is_server)
        self.sock: socket.socket | RecordSocket = self._secure or sock
        self.done = False
        self.heard = False
        self.leftover = b""
        self._handshake = handshake
        self._send = send

    def advance(self) -> bool:
        """Say what is to be said, and take in what has arrived. Returns whether anything had.

        Raises:
            AuthenticationError, WireError: the peer does not belong here, or says that this process does not;
                it was told why.
            HungUp: it has closed the connection.
            OSError: the connection failed.
        """
        try:
            if self._secure is not None:
                self.heard = True
                if not self._secure.shake_hands():
                    return False
                self._handshake.bind(self._secure.binding)
                self._secure = None
            self._say()
            data = self.sock.recv(_READ)  # the kernel closes descriptors that came beside it
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            raise HungUp
        self.heard = True
        try:
            self._handshake.receive(data)
        except AiodistError:
            with contextlib.suppress(OSError, AiodistError):
                self._say()  # the refusal, where the handshake has one
            raise
        self._say()
        if self._handshake.done:
            self._finish()
        return True

    def _say(self) -> None:
        if data := self._handshake.data_to_send():
            self._send(data)

    def _finish(self) -> None:
        """Authenticate what follows, where neither TLS nor the kernel does."""
        self.done = True
        self.leftover = self._handshake.leftover
        sock, keys = self.sock, self._handshake.keys
        if isinstance(sock, socket.socket) and self._far and keys[0]:
            self.sock, self.leftover = SealedSocket(sock, keys, self.leftover), b""
