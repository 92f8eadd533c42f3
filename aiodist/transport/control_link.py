"""Control links: small messages both ways, over a line.

Each message goes as a 32-bit little-endian length and its bytes; the length 0 is goodbye, and the largest
says that what came was altered on the way (only where messages are authenticated: `net.sealed`).

How a link ends is in `ending`; what waits to be sent, and how another thread may `post`, in `net.buffered`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from aiodist.base.errors import Tampered, UsageError
from aiodist.net.alarm import Alarm
from aiodist.transport import line, link
from aiodist.transport.base import CONTROL_MESSAGE
from aiodist.transport.ending import Ending, EndingEvent, Stage

QUEUE_LIMIT = 1 << 20
"""Bytes that may wait for a peer that does not read; beyond that it counts as lost."""

LINGER = 5.0
"""Seconds that a closed link waits for the peer's answer to goodbye."""

UNACKNOWLEDGED = 0.9
"""Seconds in which the peer's host has to acknowledge what was sent: see `SocketLine`."""

_DRAIN = 64  # reads at most: a peer may write without end
_LENGTH = struct.Struct("<I")
_GOODBYE = _LENGTH.pack(0)
_READING = (Stage.OPEN, Stage.CLOSING)
_ALTERED = 0xFFFFFFFF


class ControlLink:
    """A small two-way connection for messages that carry no bulk. Ordered and reliable.

    Args:
        loop: the event loop.
        over: the line, which it owns. One with a limit of silence ends as soon as something that was sent is
            not acknowledged in time.
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
        far: whether a network lies between: then the peer's host may fall silent.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        over: line.Line,
        rank: int,
        forget: Callable[[ControlLink], None],
    ) -> None:
        self.rank = rank
        self.far = over.far
        self.on_closed: Callable[[bool, str], None] = _ignore
        self.on_tampered: Callable[[Tampered], None] = _ignore
        self._loop = loop
        self._handler: Callable[[bytes], None] | None = None
        self._forget = forget
        self._line = over
        over.received, over.ended, over.gone = self._received, self._ended, self._gone
        self._in = bytearray()
        self._ending = Ending()
        self._alarm = Alarm(loop, self.kill)

    @property
    def on_message(self) -> Callable[[bytes], None]:
        """Called with each message."""
        return _ignore if self._handler is None else self._handler

    @on_message.setter
    def on_message(self, handler: Callable[[bytes], None]) -> None:
        first, self._handler = self._handler is None, handler
        if first:
            self._line.start()

    def send(self, message: bytes) -> None:
        """Send 1 to CONTROL_MESSAGE bytes. Ignored when the link is closed.

        A peer that reads nothing while a bounded queue fills up counts as lost.
        """
        check_message(message)
        if self._ending.stage is not Stage.OPEN:
            return
        self._line.write(_LENGTH.pack(len(message)) + message)
        if self._line.waiting > QUEUE_LIMIT:
            cause = f"it does not read its control link ({QUEUE_LIMIT >> 20} MiB wait)"
            self._loop.call_soon(self._finish, EndingEvent.FAILED, cause)

    def post(self, message: bytes) -> None:
        """Send from any thread, also while the loop does not turn. The message is dropped where earlier ones
        wait for the peer to read. The link's closing waits for it, microseconds."""
        check_message(message)
        if self._ending.stage is Stage.OPEN:
            self._line.post(_LENGTH.pack(len(message)) + message)

    def drain(self) -> None:
        """Deliver now, from inside this call, all that has reached this process already, the peer's end
        included. Needed before the peer is judged: what it wrote before its process ended is here."""
        for _ in range(_DRAIN):
            if self._handler is None or self._ending.stage is not Stage.OPEN or not self._line.poll():
                return

    def close(self) -> None:
        """Close gracefully: what was sent is flushed, then goodbye. Nothing is delivered any more."""
        if self._ending.happened(EndingEvent.CLOSE) is not None:
            self._alarm.set(self._loop.time() + LINGER)
            self._line.start()
            self._line.write(_GOODBYE)

    def kill(self) -> None:
        """Close at once, without goodbye."""
        if self._ending.happened(EndingEvent.KILL) is not None:
            self._line.kill()

    def _received(self, data: bytes) -> None:
        self._in += data
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

    def _ended(self, why: str | Tampered) -> None:
        """Note that the line has ended, or that what came was altered."""
        if isinstance(why, Tampered):
            self._finish(EndingEvent.ALTERED, why)
        else:
            self._finish(EndingEvent.FAILED, link.NO_GOODBYE if why == line.NO_GOODBYE else why)

    def _finish(self, event: EndingEvent, cause: str | Tampered = "") -> None:
        """End the link, or begin to, and tell the owner; before the socket closes: a peer that spoke nonsense
        must not hear of it first. It is told what was altered, or it would take this process for dead."""
        left = self._ending.happened(event)
        if left is None:
            return
        if self._ending.stage is Stage.LEAVING:
            self._line.write(_GOODBYE if event is EndingEvent.GOODBYE else _LENGTH.pack(_ALTERED))
        try:
            if left is not Stage.OPEN:
                pass  # the owner has closed it
            elif isinstance(cause, Tampered):
                self.on_tampered(cause)
            else:
                self.on_closed(event is EndingEvent.GOODBYE, cause)
        finally:
            if self._ending.over:
                self._line.kill()
            else:
                self._line.close(LINGER)

    def _gone(self) -> None:
        self._ending.happened(EndingEvent.SENT)
        self._alarm.stop()
        self._forget(self)


def check_message(message: bytes) -> None:
    """Raise `UsageError` unless a control message has 1 to CONTROL_MESSAGE bytes."""
    if not 0 < len(message) <= CONTROL_MESSAGE:
        raise UsageError(f"a control message has 1 to {CONTROL_MESSAGE} bytes, this one {len(message)}")


def _ignore(*_: object) -> None:
    pass
