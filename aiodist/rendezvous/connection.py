"""One connection between a store and a client: handshake, then frames. Both ends use it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

from aiodist.errors import AiodistError, RendezvousError, WireError
from aiodist.wire.handshake import Handshake
from aiodist.wire.messages import FrameParser

HANDSHAKE_SECONDS = 5.0
MAX_UNREAD = 64 << 20  # bytes that may wait for a peer that does not read, before it is cut off


class Connection(asyncio.Protocol):
    """The asyncio side of one connection.

    Before its handshake is done it holds a few KiB and lives for at most `HANDSHAKE_SECONDS`.

    Args:
        handshake: fresh, of the right role.
        on_ready: called when the handshake is done; `handshake.peer` is proven.
        on_frames: called with the payloads of frames; an `AiodistError` raised by it ends the connection.
        on_lost: called once, when the connection has ended; with the reason, where one is known.
    """

    def __init__(
        self,
        handshake: Handshake,
        on_ready: Callable[[Connection], None],
        on_frames: Callable[[Connection, list[bytes]], None],
        on_lost: Callable[[Connection, Exception | None], None],
    ) -> None:
        self.handshake = handshake
        self.peer_address = "an unknown address"
        self.local_host = ""
        self._on_ready = on_ready
        self._on_frames = on_frames
        self._on_lost = on_lost
        self._heard = False
        self._open = False
        self._parser = FrameParser()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if (sock := transport.get_extra_info("socket")) is not None:
            _keep_alive(sock)
        # Read now: some event loops forget them when the connection ends.
        self.peer_address = _text(transport.get_extra_info("peername"))
        self.local_host = str(transport.get_extra_info("sockname")[0])
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(HANDSHAKE_SECONDS, self._too_slow)
        self._flush_handshake()

    def data_received(self, data: bytes) -> None:
        if self._error is not None:
            return
        try:
            if not self._open:
                self._heard = True
                if not self._shake_hands(data):
                    return
                data = self.handshake.leftover
            if payloads := self._parser.feed(data):
                self._on_frames(self, payloads)
        except AiodistError as error:
            self._flush_handshake()  # it may hold the refusal, so that the peer knows why as well
            self.close(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_deadline()
        if error is None and self._heard and not self._open:
            error = RendezvousError("the connection was closed during the handshake")
        self._on_lost(self, self._error or error)

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them while the peer is not reading; too many of these end the connection."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > MAX_UNREAD:
            self._error = WireError(f"the peer left more than {MAX_UNREAD >> 20} MiB unread")
            transport.abort()

    def close(self, error: Exception | None = None) -> None:
        """End the connection after what was written has left."""
        self._stop_deadline()
        self._error = self._error or error
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._stop_deadline()
        if self._transport is not None:
            self._transport.abort()

    def _shake_hands(self, data: bytes) -> bool:
        self.handshake.receive(data)
        self._flush_handshake()
        if not self.handshake.done:
            return False
        self._open = True
        self._stop_deadline()
        self._on_ready(self)
        return True

    def _flush_handshake(self) -> None:
        if data := self.handshake.data_to_send():
            self.write(data)

    def _too_slow(self) -> None:
        self._error = RendezvousError(f"no handshake within {HANDSHAKE_SECONDS:g} s")
        self.abort()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _keep_alive(sock: socket.socket) -> None:
    """Notice within about 25 s that the other host is gone, however quiet the connection is."""
    with contextlib.suppress(OSError):  # the peer is gone already
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):  # macOS calls them otherwise
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _text(address: object) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return "an unknown address"
