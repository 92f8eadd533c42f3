"""Control links: small messages both ways, over a socket or inside a process.

On a socket each message goes as a 32-bit little-endian length and its bytes; the length 0 is goodbye, and the
largest says that what came was altered on the way (only where messages are authenticated: `net.sealed`).

How a link ends is in `ending`; what waits to be sent, and how another thread may `post`, in `net.buffered`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable

from aiodist.base.errors import Tampered, UsageError, WireError
from aiodist.net.buffered import PostedSocket
from aiodist.transport.base import CONTROL_MESSAGE
from aiodist.transport.ending import Ending, EndingEvent, Stage
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
_READING = (Stage.OPEN, Stage.CLOSING)
_ALTERED = 0xFFFFFFFF


class ControlLink(ABC):
    """A small two-way connection for messages that carry no bulk. Ordered and reliable.

    Args:
        rank: the peer.
        forget: called once when the link holds nothing any more.

    Attributes:
        rank: the peer's rank.
        on_message: called with each message (bytes). Nothing at all is delivered before it is set.
        on_closed: called once as (goodbye, cause) when the peer closes (goodbye True) or is gone (False).
            Not called after this side's own `close` or `kill`. Set it before `on_message`.
        on_tampered: called instead, once, where what one of the two sent was altered on the path. The
            link is gone; nothing is known against the peer, which may be dialed again. Both ends are told,
            unless the attacker prevents that. Set it before `on_message`.
        far: whether a network lies between: then the peer's host may fall silent, which ends the link as soon
            as something that was sent is not acknowledged in time.
    """

    def __init__(self, rank: int, forget: Callable[[ControlLink], None]) -> None:
        self.rank = rank
        self.far = False
        self.on_closed: Callable[[bool, str], None] = _ignore
        self.on_tampered: Callable[[Tampered], None] = _ignore
        self._handler: Callable[[bytes], None] | None = None
        self._forget = forget

    @property
    def on_message(self) -> Callable[[bytes], None]:
        """Called with each message."""
        return _ignore if self._handler is None else self._handler

    @on_message.setter
    def on_message(self, handler: Callable[[bytes], None]) -> None:
        first, self._handler = self._handler is None, handler
        if first:
            self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Deliver from now on, not from inside this call."""

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Send 1 to CONTROL_MESSAGE bytes. Ignored when the link is closed.

        A peer that reads nothing while a bounded queue fills up counts as lost.
        """

    @abstractmethod
    def post(self, message: bytes) -> None:
        """Send from any thread, also while the loop does not turn. The message is dropped where earlier ones
        wait for the peer to read. The link's closing waits for it, microseconds."""

    @abstractmethod
    def drain(self) -> None:
        """Deliver now, from inside this call, all that has reached this process already, the peer's end
        included. Needed before the peer is judged: what it wrote before its process ended is here."""

    @abstractmethod
    def close(self) -> None:
        """Close gracefully: what was sent is flushed, then goodbye. Nothing is delivered any more."""

    @abstractmethod
    def kill(self) -> None:
        """Close at once, without goodbye."""


def check_message(message: bytes) -> None:
    """Raise `UsageError` unless a control message has 1 to CONTROL_MESSAGE bytes."""
    if not 0 < len(message) <= CONTROL_MESSAGE:
        raise UsageError(f"a control message has 1 to {CONTROL_MESSAGE} bytes, this one {len(message)}")


class SocketControl(ControlLink):
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
        self._out = PostedSocket(loop, sock, self._readable, self._drained, self._broken)
        self._in = bytearray(leftover)
        self._ending = Ending()
        self._timer: asyncio.TimerHandle | None = None

    def send(self, message: bytes) -> None:
        check_message(message)
        if self._ending.stage is not Stage.OPEN:
            return
        self._out.write(_LENGTH.pack(len(message)) + message)
        if self._out.unread > QUEUE_LIMIT:
            cause = f"it does not read its control link ({QUEUE_LIMIT >> 20} MiB wait)"
            self._loop.call_soon(self._finish, EndingEvent.FAILED, cause)

    def post(self, message: bytes) -> None:
        check_message(message)
        if self._ending.stage is Stage.OPEN:
            self._out.post(_LENGTH.pack(len(message)) + message)

    def close(self) -> None:
        if self._ending.happened(EndingEvent.CLOSE) is not None:
            self._linger()
            self._out.watch()
            self._out.write(_GOODBYE)

    def kill(self) -> None:
        self._shut(EndingEvent.KILL)

    def drain(self) -> None:
        if self._handler is None or self._ending.stage is not Stage.OPEN:
            return
        self._parse()
        for _ in range(_DRAIN):
            if self._ending.stage is not Stage.OPEN or not self._readable():
                return

    def _begin(self) -> None:
        self._loop.call_soon(self._parse)
        self._out.watch()

    # Writing.

    def _drained(self) -> None:
        self._shut(EndingEvent.SENT)

    def _broken(self, error: OSError) -> None:
        """Note that nothing can be written; what the peer sent before is still worth reading."""
        self.drain()
        self._finish(EndingEvent.FAILED, self._words(error))

    def _words(self, error: OSError) -> str:
        if self.far and error.errno in _UNREACHABLE:
            return f"its host does not answer (no acknowledgement for over {UNACKNOWLEDGED:g} s)"
        return error.strerror or str(error)

    # Reading.

    def _readable(self) -> bool:
        """Read once; whether there may be more."""
        if self._ending.over:
            return False
        try:
            data = self._out.read()
        except OSError as error:
            self._finish(EndingEvent.FAILED, self._words(error))
        except Tampered as error:
            self._finish(EndingEvent.ALTERED, error)
        except WireError as error:
            self._finish(EndingEvent.FAILED, f"protocol error: {error.message}")
        else:
            if data:
                self._in += data
                self._parse()
            elif data is not None:
                self._finish(EndingEvent.FAILED, NO_GOODBYE)
            return bool(data)
        return False

    def _parse(self) -> None:
        buffer = self._in
        while self._ending.stage in _READING and len(buffer) >= _LENGTH.size:
            (nbytes,) = _LENGTH.unpack_from(buffer)
            if nbytes == _ALTERED:
                self._finish(EndingEvent.ACCUSED, Tampered())  # what else comes may be missing, or made up
                return
            if nbytes > CONTROL_MESSAGE:
                self._finish(EndingEvent.FAILED, f"protocol error: a control message of {nbytes} bytes")
                return
            if not nbytes:
                self._finish(EndingEvent.GOODBYE)
                return
            stop = _LENGTH.size + nbytes
            if len(buffer) < stop:
                return
            message = bytes(buffer[_LENGTH.size : stop])
            del buffer[:stop]
            if self._ending.stage is Stage.OPEN and self._handler is not None:
                self._handler(message)

    # Ending.

    def _finish(self, event: EndingEvent, cause: str | Tampered = "") -> None:
        """End the link, or begin to, and tell the owner; before the socket closes: a peer that spoke nonsense
        must not hear of it first. It is told what was altered, or it would take this process for dead."""
        left = self._ending.happened(event)
        if left is None:
            return
        if self._ending.stage is Stage.LEAVING:
            self._out.unwatch()
            self._out.write(_GOODBYE if event is EndingEvent.GOODBYE else _LENGTH.pack(_ALTERED))
            self._linger()
            if not self._out.queue:
                self._ending.happened(EndingEvent.SENT)
        if self._ending.over:
            self._stop()
        try:
            if left is not Stage.OPEN:
                pass  # the owner has closed it
            elif isinstance(cause, Tampered):
                self.on_tampered(cause)
            else:
                self.on_closed(event is EndingEvent.GOODBYE, cause)
        finally:
            if self._ending.over:
                self._out.close()

    def _shut(self, event: EndingEvent) -> None:
        """Close the link; nobody is told."""
        if self._ending.happened(event) is not None:
            self._stop()
            self._out.close()

    def _linger(self) -> None:
        self._timer = self._loop.call_later(LINGER, self._shut, EndingEvent.LATE)

    def _stop(self) -> None:
        """Read and write no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._out.stop()
        self._forget(self)


class MemoryControl(ControlLink):
    """One end of an in-process control link; made in pairs.

    Attributes:
        out: takes what is sent to the other end. A bool ends it: whether that is goodbye.
        over: nothing is sent or delivered any more.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rank: int, forget: Callable[[ControlLink], None]
    ) -> None:
        super().__init__(rank, forget)
        self._loop = loop
        self.out: Pipe[bytes | bool]
        self._early: list[bytes | bool] = []
        self.over = False

    @classmethod
    def join(cls, a: MemoryControl, b: MemoryControl, delay: Delay | None = None) -> None:
        """Connect two ends, each made with the other's rank."""
        a.out = Pipe(a._loop, b.arrived, delay, b.rank, a.rank)
        b.out = Pipe(b._loop, a.arrived, delay, a.rank, b.rank)

    def send(self, message: bytes) -> None:
        check_message(message)
        if not self.over:
            self.out.push(bytes(message))

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
            self.arrived(item)

    def _stop(self, goodbye: bool) -> None:
        if not self.over:
            self.over = True
            self._forget(self)
            self.out.push(goodbye)

    def arrived(self, item: bytes | bool) -> None:
        """Take what the other end has sent; called by the pipe that leads here."""
        if self.over:
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
