"""A line: a stream of bytes between two processes, which belongs to no endpoint and no epoch once it is made.

An endpoint makes it as it makes its links: dialed at the address of a card, proven by the same handshake,
and authenticated on its way like those. It ends with either process, and not with the epoch in which it was
made.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable

from aiodist.base.errors import Tampered, WireError
from aiodist.net.alarm import Alarm
from aiodist.net.buffered import BufferedSocket
from aiodist.net.records import RecordSocket
from aiodist.transport.pipe import Delay, Pipe

_LINGER = 1.0  # seconds that closing waits for the peer to take what was written
NO_GOODBYE = "its connection ended without goodbye"


class Line(ABC):
    """One end of a line.

    Attributes:
        received: called with bytes that came. Set it and the next two before `start`.
        ended: called once, with the reason, when nothing more comes; not after this side's `close` or `kill`.
            Where what came was altered (`Tampered`), the other side can still be told: write, and `close`.
        drained: called when all that waited to be written has left.
    """

    def __init__(self) -> None:
        self.received: Callable[[bytes], None] = _ignore
        self.ended: Callable[[str | Tampered], None] = _ignore
        self.drained: Callable[[], None] = _ignore

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
    def close(self) -> None:
        """End the line when all that was written has left, within a second. Nothing is delivered any more."""

    @abstractmethod
    def kill(self) -> None:
        """End the line at once. May be repeated."""


class SocketLine(Line):
    """A line over a connected, non-blocking stream socket, which it owns.

    Args:
        loop: the event loop.
        sock: behind its handshake; or a layer of records on it.
        leftover: bytes that were read behind the handshake.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket | RecordSocket, leftover: bytes = b""
    ) -> None:
        super().__init__()
        self._loop = loop
        self._out = BufferedSocket(loop, sock, self._readable, self._has_drained, self._broken)
        self._leftover = leftover
        self._started = self._over = False
        self._alarm = Alarm(loop, self._let_go)

    def start(self) -> None:
        self._loop.call_soon(self._begin)

    @property
    def waiting(self) -> int:
        return self._out.unread

    def write(self, data: bytes) -> None:
        self._out.write(data)

    def close(self) -> None:
        if self._over:
            return
        self._over = True
        self._out.unwatch()
        if self._out.unread and not self._loop.is_closed():
            self._alarm.set(self._loop.time() + _LINGER)
        else:
            self._out.close()

    def kill(self) -> None:
        self._over = True
        self._let_go()

    def _begin(self) -> None:
        if self._over:
            return
        self._started = True
        leftover, self._leftover = self._leftover, b""
        if leftover:
            self.received(leftover)
        if not self._over:
            self._out.watch()

    def poll(self) -> bool:
        return self._started and not self._over and self._readable()

    def _readable(self) -> bool:
        """Read once; whether there was something, or nothing more will be."""
        try:
            data = self._out.read()
        except OSError as error:
            self._end(error.strerror or str(error))
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
        self._readable()
        self._end(error.strerror or str(error))

    def _end(self, why: str) -> None:
        if not self._over:
            self.kill()
            self.ended(why)

    def _let_go(self) -> None:
        self._alarm.stop()
        self._out.close()


class MemoryLine(Line):
    """One end of a line inside one process; made in pairs.

    Attributes:
        out: takes what is written to the other end; None ends it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.out: Pipe[bytes | None]
        self._early: list[bytes | None] | None = []
        self._over = False

    @classmethod
    def pair(
        cls, loop: asyncio.AbstractEventLoop, a: int, b: int, delay: Delay | None = None
    ) -> tuple[MemoryLine, MemoryLine]:
        """The two ends of a line between two ranks."""
        mine, theirs = cls(), cls()
        mine.out = Pipe(loop, theirs.arrived, delay, a, b)
        theirs.out = Pipe(loop, mine.arrived, delay, b, a)
        return mine, theirs

    def start(self) -> None:
        early, self._early = self._early, None
        for item in early or ():
            self.arrived(item)

    @property
    def waiting(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        if not self._over:
            self.out.push(data)

    def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        if not self._over:
            self._over = True
            self.out.push(None)

    def arrived(self, item: bytes | None) -> None:
        """Take what the other end has written; called by the pipe that leads here."""
        if self._over:
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
