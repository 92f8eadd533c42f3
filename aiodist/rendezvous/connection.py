"""One connection between a store and a client: handshake, then frames. Both ends use it.

It reads and writes its socket without a transport in between: an answer has left when `write` returns, and
`poll` can look for one before the loop does. Per message that saves about 10 µs of 60 at each end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable

from aiodist.errors import AiodistError, RendezvousError, WireError
from aiodist.net.polling import Poller
from aiodist.net.records import RecordSocket
from aiodist.net.refusals import address_of
from aiodist.net.sealed import SealedSocket
from aiodist.net.secure import SecureSocket
from aiodist.net.users import why_not
from aiodist.wire.handshake import Handshake
from aiodist.wire.messages import FrameParser

HANDSHAKE_SECONDS = 5.0
MAX_UNREAD = 64 << 20  # bytes that may wait for a peer that does not read, before it is cut off
_CHUNK = 4 << 10  # of a quiet connection: `recv` allocates what it is asked for
_LARGE_CHUNK = 256 << 10  # of one that fills the small chunk
_LAST_WORDS = 64  # chunks that are read of a peer that has closed
_NOSIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class Connection:
    """One end of a connection.

    Before its handshake is done it holds a few KiB and lives for at most `HANDSHAKE_SECONDS`.

    Args:
        sock: connected and non-blocking; the connection owns it. Nothing happens before `start`. On a
            `SecureSocket` TLS comes first, and the handshake is bound to it.
        handshake: fresh, of the right role.
        on_ready: called when the handshake is done; `handshake.peer` is proven.
        on_frames: called with the payloads of frames; an `AiodistError` raised by it ends the connection.
        on_lost: called once, by the loop, when the connection has ended; with the reason, where one is known.
    """

    def __init__(
        self,
        sock: socket.socket | RecordSocket,
        handshake: Handshake,
        on_ready: Callable[[Connection], None],
        on_frames: Callable[[Connection, list[bytes]], None],
        on_lost: Callable[[Connection, Exception | None], None],
    ) -> None:
        self.handshake = handshake
        self.peer_address = "an unknown address"
        self.local_host = ""  # at a client: this host's address on the way to the store
        self.client = b""  # at a server: whose it is
        self.serves = False  # at a server: it answers, and looks for the next request once it has
        self._loop = asyncio.get_running_loop()
        self.poller = Poller(self._loop)
        self._sock: socket.socket | RecordSocket = sock
        self._on_ready = on_ready
        self._on_frames = on_frames
        self._on_lost = on_lost
        self._heard = False
        self._securing = isinstance(sock, SecureSocket)  # TLS comes first
        self._open = False
        self._closing = False  # nothing more is read or written, but for the queue
        self._broken = False  # nothing more can be written
        self._ended = False
        self._chunk = _CHUNK
        self._queue: deque[memoryview] = deque()
        self.unread = 0  # bytes in the queue
        self._parser = FrameParser()
        self._deadline: asyncio.TimerHandle | None = None
        self._error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is written: it has ended, or ends."""
        return self._closing

    def start(self, deadline: float | None = None) -> None:
        """Begin the handshake, to be done by `deadline` (loop time); `HANDSHAKE_SECONDS` from now if None."""
        _keep_alive(self._sock)
        self.peer_address = address_of(self._sock)
        if deadline is None:
            deadline = self._loop.time() + HANDSHAKE_SECONDS
        self._deadline = self._loop.call_at(deadline, self._too_slow)
        self._loop.add_reader(self._sock.fileno(), self._readable)
        if self._securing:
            self.read()
        else:
            self._flush_handshake()

    def hand_over(
        self,
        on_frames: Callable[[Connection, list[bytes]], None],
        on_lost: Callable[[Connection, Exception | None], None],
    ) -> None:
        """Call these from now on; for a server, which learns from the handshake whose the connection is."""
        self._on_frames = on_frames
        self._on_lost = on_lost

    def why_not(self, vouched: bool) -> str:
        """Ask the kernel what speaks against the process at the other end: see `users.why_not`."""
        return why_not(self._sock, vouched)

    def pause(self) -> None:
        """Take in nothing more, but for what `read` is called for, until `resume`."""
        if not self._closing:
            self._loop.remove_reader(self._sock.fileno())

    def resume(self) -> None:
        """Take in again what arrives."""
        if not self._closing:
            self._loop.add_reader(self._sock.fileno(), self._readable)
            self._loop.call_soon(self.read)  # TLS may hold some already

    def poll(self) -> bool:
        """Look for bytes for a few µs, if that promises something → whether some came and were taken in."""
        return self.poller.poll(self.read)

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them while the peer is not reading; too many of these end the connection."""
        if self._closing or self._broken:
            return
        sent = 0
        if not self._queue:
            try:
                sent = self._sock.send(data, _NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._write_failed(error)
                return
            if sent == len(data):
                return
            self._loop.add_writer(self._sock.fileno(), self._writable)
        self._queue.append(memoryview(data)[sent:])
        self.unread += len(data) - sent
        if self.unread > MAX_UNREAD:
            self._end(WireError(f"the peer left more than {MAX_UNREAD >> 20} MiB unread"))

    def close(self, error: Exception | None = None) -> None:
        """End the connection after what was written has left."""
        self._error = self._error or error
        if self._closing:
            return
        self._closing = True
        self._stop_deadline()
        self._loop.remove_reader(self._sock.fileno())
        if not self._queue:
            self._end(None)

    def abort(self) -> None:
        """End the connection at once."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = self._closing = True
        self._error = self._error or error
        self._stop_deadline()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._queue.clear()
        self._sock.close()
        self._loop.call_soon(self._say_lost)

    def _say_lost(self) -> None:
        error = self._error
        if error is None and self._heard and not self._open:
            error = RendezvousError("the connection was closed during the handshake")
        self._on_lost(self, error)

    # Writing.

    def _writable(self) -> None:
        queue = self._queue
        try:
            while queue:
                sent = self._sock.send(queue[0], _NOSIGNAL)
                self.unread -= sent
                if sent < len(queue[0]):
                    queue[0] = queue[0][sent:]
                    return
                queue.popleft()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._write_failed(error)
            return
        self._loop.remove_writer(self._sock.fileno())
        if self._closing:
            self._end(None)

    def _write_failed(self, error: OSError) -> None:
        """Read on, from a peer that has closed: what it said before may say why."""
        self._broken = True
        self._queue.clear()
        self._loop.remove_writer(self._sock.fileno())
        self._loop.call_soon(self._read_to_end, error)

    def _read_to_end(self, error: OSError) -> None:
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
        try:
            if self._securing:
                return self._secure()
            data = self._sock.recv(self._chunk)
        except (BlockingIOError, InterruptedError):
            return False
        except (OSError, AiodistError) as error:
            self._end(error)
            return True
        if not data:
            self._end(None)
            return True
        self._chunk = _LARGE_CHUNK if len(data) >= self._chunk else _CHUNK
        try:
            if not self._open:
                self._heard = True
                if not self._shake_hands(data) or self._closing:  # who is turned back is read no further
                    return True
                data = self._first_words()
            if payloads := self._parser.feed(data):
                self._on_frames(self, payloads)
        except AiodistError as error:
            self._flush_handshake()  # it may hold the refusal, so that the peer knows why as well
            self.close(error)
        return True

    def _secure(self) -> bool:
        assert isinstance(self._sock, SecureSocket)
        self._heard = True
        if not self._sock.shake_hands():
            return False
        self._securing = False
        self.handshake.bind(self._sock.binding)
        self._flush_handshake()
        self._loop.call_soon(self.read)  # what came with the end of TLS's handshake wakes nobody
        return True

    def _shake_hands(self, data: bytes) -> bool:
        self.handshake.receive(data)
        self._flush_handshake()
        if not self.handshake.done:
            return False
        self._seal()
        self._open = True
        self._stop_deadline()
        self._on_ready(self)
        return True

    def _seal(self) -> None:
        """Authenticate what follows, where neither TLS nor the kernel does."""
        sock, keys = self._sock, self.handshake.keys
        if isinstance(sock, socket.socket) and sock.family != getattr(socket, "AF_UNIX", None) and keys[0]:
            if self._queue:  # a few hundred bytes on a fresh connection always fit
                raise WireError("the peer does not read its handshake")
            self._sock = SealedSocket(sock, keys, self.handshake.leftover)

    def _first_words(self) -> bytes:
        """Return the bytes that came behind the handshake."""
        if not isinstance(self._sock, SealedSocket):
            return self.handshake.leftover
        try:
            return self._sock.recv(self._chunk) if self._sock.pending() else b""
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError as error:
            self._end(error)
            return b""

    def _flush_handshake(self) -> None:
        if data := self.handshake.data_to_send():
            self.write(data)

    def _too_slow(self) -> None:
        self._end(RendezvousError(f"no handshake within {HANDSHAKE_SECONDS:g} s"))

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _keep_alive(sock: socket.socket | RecordSocket) -> None:
    """Notice within about 25 s that the other host is gone, however quiet the connection is, or not.

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
