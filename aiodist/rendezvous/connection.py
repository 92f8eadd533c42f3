"""One connection between a store and a client: handshake, then frames. Both ends use it.

It reads and writes without a transport in between (`net.buffered`): an answer has left when `write` returns,
and `poll` can look for one before the loop does. Per message that saves about 10 µs of 60 at each end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from aiodist.base.environment import Tls
from aiodist.base.errors import AiodistError, RendezvousError, WireError
from aiodist.net.alarm import Alarm
from aiodist.net.buffered import BufferedSocket
from aiodist.net.opening import HungUp, Opening
from aiodist.net.polling import Poller
from aiodist.net.records import RecordSocket
from aiodist.net.refusals import address_of
from aiodist.net.users import why_not
from aiodist.net.wire.handshake import Handshake
from aiodist.net.wire.messages import FrameParser

HANDSHAKE_SECONDS = 5.0
MAX_UNREAD = 64 << 20  # bytes that may wait for a peer that does not read, before it is cut off
_LAST_WORDS = 64  # chunks that are read of a peer that has closed


class StoreConnection:
    """One end of a connection.

    Before its handshake is done it holds a few KiB and lives for at most `HANDSHAKE_SECONDS`.

    Args:
        sock: connected and non-blocking; the connection owns it. Nothing happens before `start`.
        handshake: fresh, of the right role.
        tls: see `Opening`.
        on_ready: called when the handshake is done; `handshake.peer` is proven.
        on_frames: called with the payloads of frames; an `AiodistError` raised by it ends the connection.
        on_lost: called once, by the loop, when the connection has ended; with the reason, where one is known.
    """

    def __init__(
        self,
        sock: socket.socket,
        handshake: Handshake,
        tls: Tls | None,
        on_ready: Callable[[StoreConnection], None],
        on_frames: Callable[[StoreConnection, list[bytes]], None],
        on_lost: Callable[[StoreConnection, Exception | None], None],
    ) -> None:
        self.handshake = handshake
        self.peer_address = "an unknown address"
        self.local_host = ""  # at a client: this host's address on the way to the store
        self.client = b""  # at a server: whose it is
        self.serves = False  # at a server: it answers, and looks for the next request once it has
        self._loop = asyncio.get_running_loop()
        self.poller = Poller(self._loop)
        self._opening = Opening(sock, handshake, tls, self.write)
        self._buffer = BufferedSocket(
            *(self._loop, self._opening.sock, self._readable, self._drained, self._read_to_end)
        )
        self._on_ready = on_ready
        self._on_frames = on_frames
        self._on_lost = on_lost
        self._open = False  # the handshake is done
        self._closing = False  # nothing more is read or written, but for what waits
        self._ended = False
        self._parser = FrameParser()
        self._alarm = Alarm(self._loop, self._too_slow)
        self._error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is written: it has ended, or ends."""
        return self._closing

    @property
    def unread(self) -> int:
        """Bytes that wait for a peer that does not read."""
        return self._buffer.unread

    def start(self, deadline: float | None = None) -> None:
        """Begin the handshake, to be done by `deadline` (loop time); `HANDSHAKE_SECONDS` from now if None."""
        _keep_alive(self._buffer.sock)
        self.peer_address = address_of(self._buffer.sock)
        if deadline is None:
            deadline = self._loop.time() + HANDSHAKE_SECONDS
        self._alarm.set(deadline)
        self._buffer.watch()
        self.read()

    def hand_over(
        self,
        on_frames: Callable[[StoreConnection, list[bytes]], None],
        on_lost: Callable[[StoreConnection, Exception | None], None],
    ) -> None:
        """Call these from now on; for a server, which learns from the handshake whose the connection is."""
        self._on_frames = on_frames
        self._on_lost = on_lost

    def why_not(self, vouched: bool) -> str:
        """Ask the kernel what speaks against the process at the other end: see `users.why_not`."""
        return why_not(self._buffer.sock, vouched)

    def pause(self) -> None:
        """Take in nothing more, but for what `read` is called for, until `resume`."""
        self._buffer.unwatch()

    def resume(self) -> None:
        """Take in again what arrives."""
        if not self._closing:
            self._buffer.watch()

    def poll(self) -> bool:
        """Look for bytes for a few µs, if that promises something → whether some came and were taken in."""
        return self.poller.poll(self.read)

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them while the peer is not reading; too many of these end the connection."""
        if self._closing:
            return
        self._buffer.write(data)
        if self._buffer.unread > MAX_UNREAD:
            self._end(WireError(f"the peer left more than {MAX_UNREAD >> 20} MiB unread"))

    def close(self, error: Exception | None = None) -> None:
        """End the connection after what was written has left."""
        self._error = self._error or error
        if self._closing:
            return
        self._closing = True
        self._alarm.stop()
        self._buffer.unwatch()
        self._drained()

    def abort(self) -> None:
        """End the connection at once."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = self._closing = True
        self._error = self._error or error
        self._alarm.stop()
        self._buffer.close()
        self._loop.call_soon(self._say_lost)

    def _say_lost(self) -> None:
        error = self._error
        if error is None and self._opening.heard and not self._open:
            error = RendezvousError("the connection was closed during the handshake")
        self._on_lost(self, error)

    def _drained(self) -> None:
        if self._closing and not self._buffer.queue:
            self._end(None)

    def _read_to_end(self, error: OSError) -> None:
        """Read on, from a peer that has closed: what it said before may say why."""
        for _ in range(_LAST_WORDS):
            if self._closing or not self.read():
                break
        self._end(error)

    # Reading.

    def _readable(self) -> None:
        if self.read() and self.serves and self.poller.only(self):
            # Who asks one thing after the other asks again in a moment.
            while not (self._closing or self.poller.overdue()) and self.poller.poll(self.read):
                pass

    def read(self) -> bool:
        """Take in what has arrived → whether anything had, or nothing more will."""
        if self._closing:
            return True
        if not self._open:
            return self._advance()
        try:
            data = self._buffer.read()
        except (OSError, AiodistError) as error:
            self._end(error)
            return True
        if data is None:
            return False
        if not data:
            self._end(None)
            return True
        try:
            if payloads := self._parser.feed(data):
                self._on_frames(self, payloads)
        except AiodistError as error:
            self.close(error)
        return True

    def _advance(self) -> bool:
        """Go on with the handshake; as `read`."""
        opening = self._opening
        try:
            came = opening.advance()
            if opening.done:
                self._opened()
        except HungUp:
            self._end(None)
        except AiodistError as error:
            self.close(error)
        except OSError as error:
            self._end(error)
        else:
            return came
        return True

    def _opened(self) -> None:
        if self._buffer.queue:  # a few hundred bytes on a fresh connection always fit
            raise WireError("the peer does not read its handshake")
        self._buffer.sock = self._opening.sock
        self._open = True
        self._alarm.stop()
        self._on_ready(self)
        if not self._closing:  # who is turned back is read no further
            if payloads := self._parser.feed(self._opening.leftover):
                self._on_frames(self, payloads)
            self._buffer.watch_rest()

    def _too_slow(self) -> None:
        self._end(RendezvousError(f"no handshake within {HANDSHAKE_SECONDS:g} s"))


def _keep_alive(sock: socket.socket | RecordSocket) -> None:
    """Notice within about 25 s that the other host is gone, however idle the connection is, or not.

    Where something was sent and is not acknowledged, there are no keepalives, and the kernel would try for a
    quarter of an hour. Who lives and reads nothing for as long, while more waits than its socket can take, is
    cut off too, and comes back.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # the peer is gone already
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        limits = {"KEEPIDLE": 10, "KEEPINTVL": 5, "KEEPCNT": 3, "USER_TIMEOUT": 25_000}
        for name, value in [(f"TCP_{name}", value) for name, value in limits.items()]:
            if hasattr(socket, name):  # macOS calls them otherwise
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
