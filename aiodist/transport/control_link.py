"""Control links: small messages both ways, over a socket or inside a process.

On a socket each message goes as a 32-bit little-endian length and its bytes; the length 0 is goodbye, and the
largest says that what came was altered on the way (only where messages are authenticated: `net.sealed`).

Another thread may `post` while the loop is stuck in a call, or comes back from it. So a lock is held
to touch the socket, or what waits to be written; never across a callback. Nothing under it blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
import threading
from abc import abstractmethod
from collections.abc import Callable

from aiodist.errors import Tampered, UsageError, WireError
from aiodist.net.shortage import AGAIN, NO_MEMORY
from aiodist.transport.base import CONTROL_MESSAGE, ControlLink
from aiodist.transport.link import NO_GOODBYE
from aiodist.transport.pipe import Delay, Pipe

QUEUE_LIMIT = 1 << 20
"""Bytes that may wait for a peer that does not read; beyond that it counts as lost."""

LINGER = 5.0
"""Seconds that a closed link waits for the peer's answer to goodbye."""

UNACKNOWLEDGED = 0.9
"""Seconds in which the peer's kernel has to acknowledge what was sent, where that can be set (Linux). It does
so whatever its process does. Linux counts from the first retransmission, some 0.2 s after the sending. Not
for links with bulk: a full window, too, looks like silence."""

KEEPALIVE = 1
"""Seconds without a message after which the kernels ask each other, likewise: a peer whose loop does not turn
is sent nothing else for a while (`control.liveness`)."""

_DRAIN = 64  # reads at most: a peer may write without end
_UNREACHABLE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}
_LENGTH = struct.Struct("<I")
_GOODBYE = _LENGTH.pack(0)
_ALTERED = 0xFFFFFFFF
_NOSIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class CallbackControl(ControlLink):
    """A control link that delivers nothing before `on_message` is set.

    Args:
        rank: the peer.
        forget: called once when the link holds nothing any more.
    """

    def __init__(self, rank: int, forget: Callable[[ControlLink], None]) -> None:
        self.rank = rank
        self.far = False
        self.on_closed = _ignore
        self.on_tampered = _ignore
        self._handler: Callable[[bytes], None] | None = None
        self._forget = forget

    @property
    def on_message(self) -> Callable[[bytes], None]:
        """See `ControlLink`."""
        return _ignore if self._handler is None else self._handler

    @on_message.setter
    def on_message(self, handler: Callable[[bytes], None]) -> None:
        first, self._handler = self._handler is None, handler
        if first:
            self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Deliver from now on, not from inside this call."""


def check_message(message: bytes) -> None:
    """Raise `UsageError` unless a control message has 1 to CONTROL_MESSAGE bytes."""
    if not 0 < len(message) <= CONTROL_MESSAGE:
        raise UsageError(f"a control message has 1 to {CONTROL_MESSAGE} bytes, this one {len(message)}")


class SocketControl(CallbackControl):
    """A control link over a connected, non-blocking stream socket, which it owns.

    Args:
        leftover: bytes that were read behind the handshake.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        rank: int,
        forget: Callable[[ControlLink], None],
        leftover: bytes = b"",
    ) -> None:
        super().__init__(rank, forget)
        self._loop = loop
        self.far = sock.family != getattr(socket, "AF_UNIX", None)
        if self.far and hasattr(socket, "TCP_USER_TIMEOUT"):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNACKNOWLEDGED * 1000))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._sock = sock
        self._lock = threading.Lock()
        self._fd = sock.fileno()
        self._in = bytearray(leftover)
        self._out = bytearray()
        self._reading = False
        self._writing = False
        self._closing = False  # we said goodbye; the peer's is awaited
        self._answering = False  # our goodbye is on its way, and the peer's was read or is not awaited
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    def send(self, message: bytes) -> None:
        check_message(message)
        if self._over or self._closing or self._answering:
            return
        self._write(_LENGTH.pack(len(message)) + message)
        if len(self._out) > QUEUE_LIMIT:
            self._loop.call_soon(
                self._lost, f"it does not read its control link ({QUEUE_LIMIT >> 20} MiB wait)"
            )

    def post(self, message: bytes) -> None:
        check_message(message)
        frame = _LENGTH.pack(len(message)) + message
        with self._lock:
            if self._over or self._closing or self._answering or self._out:
                return
            try:
                sent = self._sock.send(frame, _NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                sent = 0  # it may be under way all the same: TLS has to be offered the same bytes again
            except OSError as error:
                if error.errno not in NO_MEMORY:
                    return  # the loop finds that out for itself
                sent = 0
            self._out += frame[sent:]
            if not self._out:
                return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._await_room)

    def close(self) -> None:
        if self._over or self._closing or self._answering:
            return
        self._closing = True
        self._timer = self._loop.call_later(LINGER, self._shut)
        self._read()
        self._write(_GOODBYE)

    def kill(self) -> None:
        self._shut()

    def drain(self) -> None:
        if self._handler is None or self._closing:
            return
        self._parse()
        for _ in range(_DRAIN):
            if self._over or self._answering or not self._readable():
                return

    def _begin(self) -> None:
        self._loop.call_soon(self._parse)
        pending = getattr(self._sock, "pending", None)
        if pending is not None and pending():  # of what was read already no selector tells
            self._loop.call_soon(self._readable)
        self._read()

    # Writing.

    def _write(self, data: bytes) -> None:
        sent = 0
        with self._lock:
            if not self._out:
                try:
                    sent = self._sock.send(data, _NOSIGNAL)
                except (BlockingIOError, InterruptedError):
                    pass
                except OSError as error:
                    if error.errno not in NO_MEMORY:
                        self._loop.call_soon(self._broken, error)
                        return
            self._out += data[sent:]
        self._await_room()

    def _await_room(self) -> None:
        """Write on when there is room, if something waits."""
        if self._out and not self._writing and not self._over:
            self._writing = True
            self._loop.add_writer(self._fd, self._flush)

    def _flush(self) -> None:
        try:
            with self._lock:
                del self._out[: self._sock.send(self._out, _NOSIGNAL)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if error.errno in NO_MEMORY:  # of this host: no fault of the peer's
                self._rest()
                self._loop.call_later(AGAIN, self._await_room)
            else:
                self._broken(error)
            return
        if not self._out:
            self._rest()
            if self._answering:
                self._shut()

    def _rest(self) -> None:
        self._writing = False
        self._loop.remove_writer(self._fd)

    def _broken(self, error: OSError) -> None:
        """Note that writing failed; what the peer sent before is still worth reading."""
        self.drain()
        self._lost(self._words(error))

    def _words(self, error: OSError) -> str:
        if self.far and error.errno in _UNREACHABLE:
            return f"its host does not answer (no acknowledgement for over {UNACKNOWLEDGED:g} s)"
        return error.strerror or str(error)

    # Reading.

    def _read(self) -> None:
        if not self._reading and not self._over:
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> bool:
        """Read once; whether there may be more."""
        if self._over:
            return False
        try:
            with self._lock:
                data = self._sock.recv(CONTROL_MESSAGE)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._lost(self._words(error))
            return False
        except Tampered as error:
            self._altered(error)
            return False
        except WireError as error:
            self._lost(f"protocol error: {error.message}")
            return False
        if not data:
            self._lost(NO_GOODBYE)
            return False
        self._in += data
        self._parse()
        return True

    def _parse(self) -> None:
        buffer = self._in
        while not self._over and not self._answering and len(buffer) >= _LENGTH.size:
            (nbytes,) = _LENGTH.unpack_from(buffer)
            if nbytes == _ALTERED:
                self._tampered(Tampered())
                return
            if nbytes > CONTROL_MESSAGE:
                self._lost(f"protocol error: a control message of {nbytes} bytes")
                return
            if not nbytes:
                self._goodbye()
                return
            stop = _LENGTH.size + nbytes
            if len(buffer) < stop:
                return
            message = bytes(buffer[_LENGTH.size : stop])
            del buffer[:stop]
            if not self._closing and self._handler is not None:
                self._handler(message)

    # Ending.

    def _goodbye(self) -> None:
        if self._closing:
            self._shut()
            return
        self._say_last(_GOODBYE)
        self.on_closed(True, "")

    def _say_last(self, word: bytes) -> None:
        """Read no more, and close once this has left, behind all that waits before it."""
        self._answering = True
        self._loop.remove_reader(self._fd)
        self._reading = False
        self._write(word)
        if not self._out:
            self._shut()
        else:
            self._timer = self._loop.call_later(LINGER, self._shut)

    def _lost(self, cause: str) -> None:
        if self._over:
            return
        report = not self._closing and not self._answering
        self._stop()
        try:
            if report:  # before the socket closes: a peer that spoke nonsense must not hear of it first
                self.on_closed(False, cause)
        finally:
            self._release()

    def _altered(self, error: Tampered) -> None:
        """End the link: what the peer sent was altered. It is told, or it would take us for dead."""
        if self._closing:
            self._shut()
            return
        self._say_last(_LENGTH.pack(_ALTERED))
        self.on_tampered(error)

    def _tampered(self, error: Tampered) -> None:
        """End the link: what we sent was altered. What else comes here may be missing, or made up."""
        report = not self._over and not self._closing and not self._answering
        self._shut()
        if report:
            self.on_tampered(error)

    def _shut(self) -> None:
        if not self._over:
            self._stop()
            self._release()

    def _release(self) -> None:
        with self._lock:  # or the descriptor's number may be another's before a thread has written there
            self._sock.close()

    def _stop(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            if self._writing:
                self._loop.remove_writer(self._fd)
        with self._lock:
            self._out.clear()
        self._forget(self)


class MemoryControl(CallbackControl):
    """One end of an in-process control link; made in pairs."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rank: int, forget: Callable[[ControlLink], None]
    ) -> None:
        super().__init__(rank, forget)
        self._loop = loop
        self._out: Pipe[bytes | bool]
        self._early: list[bytes | bool] = []
        self._over = False

    @classmethod
    def join(cls, a: MemoryControl, b: MemoryControl, delay: Delay | None = None) -> None:
        """Connect two ends, each made with the other's rank."""
        a._out = Pipe(a._loop, b._arrived, delay, b.rank, a.rank)
        b._out = Pipe(b._loop, a._arrived, delay, a.rank, b.rank)

    def send(self, message: bytes) -> None:
        check_message(message)
        if not self._over:
            self._out.push(bytes(message))

    def post(self, message: bytes) -> None:
        self._loop.call_soon_threadsafe(self.send, message)

    def drain(self) -> None:
        """Do nothing: what is under way is in the loop's queue."""

    def close(self) -> None:
        self._stop(goodbye=True)

    def kill(self) -> None:
        self._stop(goodbye=False)

    def _begin(self) -> None:
        self._loop.call_soon(self._replay)

    def _replay(self) -> None:
        early, self._early = self._early, []
        for item in early:
            self._arrived(item)

    def _stop(self, goodbye: bool) -> None:
        if not self._over:
            self._over = True
            self._forget(self)
            self._out.push(goodbye)

    def _arrived(self, item: bytes | bool) -> None:
        if self._over:
            return
        if self._handler is None or self._early:
            self._early.append(item)
        elif isinstance(item, bytes):
            self._handler(item)
        else:
            self._stop(goodbye=True)
            self.on_closed(item, "" if item else NO_GOODBYE)


def _ignore(*_: object) -> None:
    pass
