"""Links inside one process, for tests and simulation: frames travel through the event loop's queue.

Payloads are copied once, so that nobody sees another rank's memory. A link carries at most WINDOW bytes
of segments at a time, which makes a sender wait as a socket would.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from aiodist.errors import UsageError, WireError
from aiodist.transport.base import CONTROL_MESSAGE, ControlLink, Key
from aiodist.transport.link import NO_GOODBYE, Link, LinkUser
from aiodist.wire.frame import Flag, Type, pack, parse

WINDOW = 1 << 20
Delay = Callable[[int, int], float]

_Item = TypeVar("_Item")
_NOTHING = memoryview(b"")


class Pipe(Generic[_Item]):
    """One direction: items arrive in order, each after its delay, never inside `push`.

    Args:
        loop: its clock and queue.
        deliver: called with each item.
        delay: seconds for the next item; None: as soon as the loop turns.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[_Item], None],
        delay: Callable[[], float] | None = None,
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._delay = delay
        self._queue: deque[_Item] = deque()
        self._last = 0.0

    def push(self, item: _Item) -> None:
        """Send one item; lost silently when the loop is closed."""
        if self._loop.is_closed():
            return
        self._queue.append(item)
        if self._delay is None:
            self._loop.call_soon(self._pop)
        else:
            # Timers of equal time may fire in any order, so each delivers the oldest item, not its own.
            self._last = max(self._last, self._loop.time() + self._delay())
            self._loop.call_at(self._last, self._pop)

    def _pop(self) -> None:
        self._deliver(self._queue.popleft())


class MemoryLink(Link):
    """One end of an in-process link; made in pairs."""

    def __init__(self) -> None:
        self.room = True
        self.on_closed = None
        self._user: LinkUser | None = None
        self._out: Pipe[tuple[bytes, bytes] | None]
        self._other: MemoryLink
        self._in_flight = 0
        self._closing = False
        self._over = False

    @classmethod
    def pair(
        cls, loop: asyncio.AbstractEventLoop, a: int, b: int, delay: Delay | None = None
    ) -> tuple[MemoryLink, MemoryLink]:
        """The two ends of a link between ranks `a` and `b`."""
        ends = cls(), cls()
        for (mine, other), (src, dst) in zip((ends, ends[::-1]), ((a, b), (b, a)), strict=True):
            late = None if delay is None else _bind(delay, src, dst)
            mine._out = Pipe(loop, other._arrived, late)
            mine._other = other
        return ends

    def start(self, user: LinkUser) -> None:
        self._user = user

    def post(self, header: bytes, payload: memoryview | None = None) -> None:
        if not self._over:
            self._out.push((header, b"" if payload is None else bytes(payload)))

    def write(self, key: Key, payload: memoryview, offset: int, total: int, signature: bytes) -> bool:
        nbytes = len(payload)
        self._in_flight += nbytes
        self.room = self._in_flight < WINDOW
        self.post(
            pack(Type.DATA, *key, nbytes=nbytes, offset=offset, total=total, signature=signature), payload
        )
        return True

    def keep(self) -> None:
        pass

    def divert(self, place: memoryview) -> None:
        pass

    def close(self, moved: bool = False) -> None:
        if self._over or self._closing:
            return
        self._closing = True
        self.post(pack(Type.GOODBYE, flags=Flag.MOVED if moved else 0))

    def kill(self) -> None:
        if not self._over:
            self._over = True
            self._user = None
            self._out.push(None)

    def _arrived(self, item: tuple[bytes, bytes] | None) -> None:
        if self._over:
            return
        user = self._user
        assert user is not None
        if item is None:
            self._end(False, False, NO_GOODBYE)
            return
        header, payload = item
        try:
            frame = parse(header)
            if frame.type == Type.GOODBYE:
                if not self._closing:
                    self.post(pack(Type.GOODBYE))
                self._end(True, bool(frame.flags & Flag.MOVED), "")
                return
            if not self._closing:
                user.received(frame, memoryview(payload) if payload else _NOTHING)
        except WireError as error:
            self._out.push(None)
            self._end(False, False, f"protocol error: {error.message}")
            return
        if frame.type == Type.DATA:
            self._other._landed(len(payload))

    def _landed(self, nbytes: int) -> None:
        """The other end has taken a segment of ours."""
        self._in_flight -= nbytes
        if not self.room and self._in_flight < WINDOW:
            self.room = True
            if self._user is not None and not self._closing:
                self._user.writable()

    def _end(self, goodbye: bool, moved: bool, cause: str) -> None:
        user, self._user = self._user, None
        self._over = True
        if self._closing:
            if self.on_closed is not None:
                self.on_closed()
        elif user is not None:
            user.ended(goodbye, moved, cause)


class MemoryControl(ControlLink):
    """One end of an in-process control link; made in pairs."""

    def __init__(self, rank: int, forget: Callable[[ControlLink], None]) -> None:
        self.rank = rank
        self.on_message = _ignore
        self.on_closed = _ignore
        self._forget = forget
        self._out: Pipe[bytes | bool]
        self._over = False

    @classmethod
    def join(
        cls, loop: asyncio.AbstractEventLoop, a: MemoryControl, b: MemoryControl, delay: Delay | None = None
    ) -> None:
        """Connect two ends, each made with the other's rank."""
        for mine, other in ((a, b), (b, a)):
            late = None if delay is None else _bind(delay, other.rank, mine.rank)
            mine._out = Pipe(loop, other._arrived, late)

    def send(self, message: bytes) -> None:
        check_control(message)
        if not self._over:
            self._out.push(bytes(message))

    def close(self) -> None:
        self._end(goodbye=True)

    def kill(self) -> None:
        self._end(goodbye=False)

    def _end(self, goodbye: bool) -> None:
        if not self._over:
            self._over = True
            self._forget(self)
            self._out.push(goodbye)

    def _arrived(self, item: bytes | bool) -> None:
        if self._over:
            return
        if isinstance(item, bytes):
            self.on_message(item)
            return
        self._end(goodbye=True)
        self.on_closed(item, "" if item else NO_GOODBYE)


def check_control(message: bytes) -> None:
    """`UsageError` unless a control message has 1 to CONTROL_MESSAGE bytes."""
    if not 0 < len(message) <= CONTROL_MESSAGE:
        raise UsageError(f"a control message has 1 to {CONTROL_MESSAGE} bytes, this one {len(message)}")


def _bind(delay: Delay, src: int, dst: int) -> Callable[[], float]:
    return lambda: delay(src, dst)


def _ignore(*_: object) -> None:
    pass
