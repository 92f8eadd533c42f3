"""A line: a stream of bytes between two processes, under control links and the connections of services.

An endpoint makes it as it makes its links: dialed at the address of a card, proven by the same handshake,
and authenticated on its way like those. A line of services belongs to no endpoint and no epoch once it is
made: it ends with either process, and not with the epoch in which it was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable

from aiodist.base.errors import Tampered, WireError
from aiodist.net.alarm import Alarm
from aiodist.net.buffered import PostedSocket
from aiodist.net.records import RecordSocket
from aiodist.transport.pipe import Delay, Pipe

KEEPALIVE = 1
"""Seconds without a message after which the kernels of both hosts ask each other, where silence is limited: a
peer whose loop does not turn is sent nothing for a while (`control.liveness`)."""

_LINGER = 1.0  # seconds that closing waits for the peer to take what was written
_DRAIN = 64  # reads at most, of a peer that may write without end
_UNREACHABLE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}
NO_GOODBYE = "its connection ended without goodbye"


class Line(ABC):
    """One end of a line.

    Attributes:
        far: whether a network lies between.
        received: called with bytes that came. Set it and the next two before `start`.
        ended: called once, with the reason, when nothing more comes; not after this side's `close` or `kill`.
            Where what came was altered (`Tampered`), the other side can still be told: write, and `close`.
        drained: called when all that waited to be written has left.
        gone: called once, when it holds nothing any more.
    """

    far = False

    def __init__(self) -> None:
        self.received: Callable[[bytes], None] = _ignore
        self.ended: Callable[[str | Tampered], None] = _ignore
        self.drained: Callable[[], None] = _ignore
        self.gone: Callable[[], None] = _ignore

    @abstractmethod
    def start(self) -> None:
        """Deliver from now on, not from inside this call."""

    def poll(self) -> bool:
        """Deliver now, from inside this call, what has arrived; whether anything had."""
        return False

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Bytes that were written and have not left."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send bytes behind all that waits. Ignored when the line has ended."""

    @abstractmethod
    def post(self, data: bytes) -> None:
        """Send bytes from any thread, also while the loop does not turn. They are dropped where others wait
        for the peer to read. The line's end waits for it, microseconds."""

    @abstractmethod
    def close(self, linger: float = _LINGER) -> None:
        """End the line when all that was written has left, within so many seconds. Nothing is delivered any
        more."""

    @abstractmethod
    def kill(self) -> None:
        """End the line at once. May be repeated."""


class SocketLine(Line):
    """A line over a connected, non-blocking stream socket, which it owns.

    Args:
        loop: the event loop.
        sock: behind its handshake; or a layer of records on it.
        leftover: bytes that were read behind the handshake.
        silence: seconds in which the kernel of the peer's host has to acknowledge what was sent, where that
            can be set (Linux). It does so whatever its process does. Linux counts from the first
            retransmission, some 0.2 s after the sending. None: it may take as long as it likes, as for lines
            with bulk, where a full window looks like silence.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket | RecordSocket,
        leftover: bytes = b"",
        *,
        silence: float | None = None,
    ) -> None:
        super().__init__()
        self.far = sock.family != getattr(socket, "AF_UNIX", None)
        self._loop = loop
        self._silence = silence
        if silence is not None and self.far and hasattr(socket, "TCP_USER_TIMEOUT"):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(silence * 1000))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._out = PostedSocket(loop, sock, self._readable, self._has_drained, self._broken)
        self._leftover = leftover
        self._asked = self._started = self._over = False
        self._alarm = Alarm(loop, self._let_go)

    def start(self) -> None:
        self._asked = True
        self._loop.call_soon(self._begin)

    @property
    def waiting(self) -> int:
        return self._out.unread

    def write(self, data: bytes) -> None:
        self._out.write(data)

    def post(self, data: bytes) -> None:
        self._out.post(data)

    def close(self, linger: float = _LINGER) -> None:
        if self._over:
            return
        self._over = True
        self._out.unwatch()
        if self._out.unread and not self._loop.is_closed():
            self._alarm.set(self._loop.time() + linger)
        else:
            self._let_go()

    def kill(self) -> None:
        self._over = True
        self._let_go()

    def _begin(self) -> None:
        if self._over or self._started or not self._asked:
            return
        self._started = True
        leftover, self._leftover = self._leftover, b""
        if leftover:
            self.received(leftover)
        if not self._over:
            self._out.watch()

    def poll(self) -> bool:
        self._begin()
        return self._started and not self._over and self._readable()

    def _readable(self) -> bool:
        """Read once; whether there was something, or nothing more will be."""
        try:
            data = self._out.read()
        except OSError as error:
            self._end(self._words(error))
        except Tampered as error:
            self._out.unwatch()
            self.ended(error)
        except WireError as error:
            self._end(f"protocol error: {error.message}")
        else:
            if data is None:
                return False
            if data:
                self.received(data)
                self._out.watch_rest()
            else:
                self._end(NO_GOODBYE)
        return True

    def _has_drained(self) -> None:
        if self._over:
            self._let_go()
        else:
            self.drained()

    def _broken(self, error: OSError) -> None:
        """Note that nothing can be written; what the peer sent before is still worth reading."""
        if self._over:
            self._let_go()
            return
        for _ in range(_DRAIN):
            if not self.poll():
                break
        self._end(self._words(error))

    def _words(self, error: OSError) -> str:
        if self._silence is not None and self.far and error.errno in _UNREACHABLE:
            return f"its host does not answer (no acknowledgement for over {self._silence:g} s)"
        return error.strerror or str(error)

    def _end(self, why: str) -> None:
        """End the line, and say why before the socket closes: a peer that spoke nonsense must not hear of it
        first."""
        if not self._over:
            self._over = True
            self._out.stop()
            try:
                self.ended(why)
            finally:
                self._let_go()

    def _let_go(self) -> None:
        self._alarm.stop()
        self._out.close()
        gone, self.gone = self.gone, _ignore
        gone()


class MemoryLine(Line):
    """One end of a line inside one process; made in pairs.

    Args:
        loop: the event loop.

    Attributes:
        out: takes what is written to the other end; None ends it.
        over: nothing is sent or delivered any more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.out: Pipe[bytes | None]
        self.over = False
        self._loop = loop
        self._early: list[bytes | None] | None = []

    @classmethod
    def pair(
        cls, loop: asyncio.AbstractEventLoop, a: int, b: int, delay: Delay | None = None
    ) -> tuple[MemoryLine, MemoryLine]:
        """The two ends of a line between two ranks."""
        mine, theirs = cls(loop), cls(loop)
        mine.out = Pipe(loop, theirs.arrived, delay, a, b)
        theirs.out = Pipe(loop, mine.arrived, delay, b, a)
        return mine, theirs

    def start(self) -> None:
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        early, self._early = self._early, None
        for item in early or ():
            self.arrived(item)

    @property
    def waiting(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        if not self.over:
            self.out.push(data)

    def post(self, data: bytes) -> None:
        self._loop.call_soon_threadsafe(self.write, data)

    def close(self, linger: float = _LINGER) -> None:
        self.kill()

    def kill(self) -> None:
        if not self.over:
            self.over = True
            self.out.push(None)
            self.gone()

    def arrived(self, item: bytes | None) -> None:
        """Take what the other end has written; called by the pipe that leads here."""
        if self.over:
            return
        if self._early is not None:
            self._early.append(item)
        elif item is not None:
            self.received(item)
        else:
            self.kill()
            self.ended(NO_GOODBYE)


def _ignore(*_: object) -> None:
    pass
