"""What this process asks of another, on one connection that it has dialed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Protocol

from aiodist import _engine
from aiodist.base.errors import Tampered, WireError
from aiodist.group.services import under_way
from aiodist.group.services.asking import Asked, Asking
from aiodist.group.services.connection import Connection
from aiodist.group.services.outcomes import LATE, LEAVES, LEFT, LOST, NOT_SENT, VALUE, Outcome, Why
from aiodist.group.services.queue import Queue
from aiodist.group.services.serving import SERVED
from aiodist.net.alarm import Alarm
from aiodist.net.wire import calls
from aiodist.net.wire.calls import ENDS, Says
from aiodist.transport.line import Line

_CALL, _STREAM, _MESSAGE, _PART = (
    Says.CALL,
    Says.STREAM,
    Says.MESSAGE,
    int(Says.PART),
)  # members of an enum are slow


class CallWaiter(Protocol):
    """The waiting end of a stream: its answer goes there."""

    def part(self, body: bytes | bytearray) -> None:
        """A part has come."""

    def ended(self, outcome: Outcome) -> None:
        """Nothing more comes."""


class Caller:
    """The calls of this process at another.

    Args:
        loop: the event loop.
        line: that this process dialed; owned.
        queue: what waits for room.
        room: called when there may be room for more, or when the connection has ended.

    Attributes:
        asking: the calls without an answer.
        ask_small: sends a call with a small plain value at once, before which none waits; None where it is
            none, and nothing has happened. None without the engine.
        over: the connection has ended.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, line: Line, queue: Queue[Asked], room: Callable[[], None]
    ) -> None:
        self.asking = Asking()
        self._loop = loop
        self._room = room
        self._alarm = Alarm(loop, self._expire)
        self._connection = Connection(loop, line, self._take, self._ended, room)
        self.ask_small: Callable[[Says, bytes, Any, float], Asked | None] | None = None
        if _engine.compiled is not None:
            asker = _engine.compiled.Asker(
                self._connection,
                self.asking,
                queue.waiting,
                queue.messages,
                loop,
                make=Asked,
                by=SERVED,
                call=_CALL,
                message=_MESSAGE,
                alarm=self._alarm,
                room=room,
                decoded=VALUE,
                most=under_way.CALLS,
                window=under_way.WINDOW,
            )
            self._connection.matcher = asker
            self.ask_small = asker.ask

    @property
    def over(self) -> bool:
        """Whether the connection has ended."""
        return self._connection.over

    def fits(self, nbytes: int) -> bool:
        """Whether a call with so many bytes may be sent now."""
        connection = self._connection
        return not (connection.over or connection.full) and self.asking.fits(nbytes)

    def ask(self, asked: Asked) -> None:
        """Send a call, which fits."""
        asking, connection, kind, nbytes = self.asking, self._connection, asked.kind, asked.nbytes
        asking.ask(asked)
        payload, asked.payload = asked.payload, b""
        number, name, left = asked.number, asked.name, asked.deadline
        if left < math.inf:
            left = max(0.0, left - self._loop.time())
        if connection.in_turn(lane := 0 if kind is _MESSAGE else number, nbytes):
            connection.send_in_turn(lane, kind, number, calls.request_head(left, name), payload)
        else:
            connection.send(calls.request(kind, number, left, name, payload), many=len(asking.calls))
        if asking.due < self._alarm.at:
            self._alarm.set(asking.due)

    def poll(self) -> bool:
        """Look for the answer of the only call for some microseconds; whether the loop has to turn then."""
        return self._connection.poll() and self._connection.overdue()

    def abandon(self, asked: Asked) -> None:
        """Wait for a call no more, and have the other side stop it. May be repeated."""
        if self.asking.abandon(asked):
            self._connection.drop(_lane(asked), asked.number)
            self._connection.send(calls.frame(Says.CANCEL, asked.number))

    def took(self, asked: Asked, nbytes: int) -> None:
        """Note that a part was taken, so that others may come."""
        granted = asked.took(nbytes)
        if granted and not asked.stopped and self.asking.calls.get(asked.number) is asked:
            self._connection.send(calls.grant(asked.number, granted))

    def close(self) -> None:
        """Say goodbye; what is not answered never will be."""
        self._connection.close()
        self._lost(LEFT)

    def lose(self, why: str) -> None:
        """End the connection: the process is lost."""
        if not self.over:
            self._connection.kill()
            self._lost(why)

    # Inside.

    def _take(self, kind: int, number: int, body: bytes | bytearray) -> None:
        if kind in ENDS:
            asked = self.asking.answered(number)
            if asked.kind is not _CALL:
                if not asked.stopped:
                    tell(asked, (kind, body))
            elif not asked.waiter.done():
                asked.waiter.set_result((kind, body))
            self._room()
        elif kind == _PART:
            asked = self.asking.part(number, len(body))
            if not asked.stopped:
                asked.waiter.part(body)
        else:
            raise WireError(f"a frame of kind {kind} from the side that was dialed")

    def _ended(self, why: str | Tampered) -> None:
        """Note that the connection has ended; whether the process is lost, others know."""
        self._lost(ConnectionError(why) if isinstance(why, str) and why else why)

    def _lost(self, why: Why) -> None:
        self._alarm.stop()
        for asked in self.asking:
            self.asking.answered(asked.number)
            if not asked.stopped:
                unseen = not why and asked.number > self._connection.last > 0
                unseen = unseen or asked.number in self._connection.unsent
                tell(asked, _not_seen(why) if unseen else (LOST, why))
        self._room()

    def _expire(self) -> None:
        for asked in self.asking.expired(self._loop.time()):
            self.abandon(asked)
            tell(asked, (LATE, None))
        self._alarm.set(self.asking.due)


def _not_seen(why: Why) -> Outcome:
    """The outcome of a call that the other side has not seen, or not whole."""
    return (NOT_SENT, why) if why else (Says.REFUSED, LEAVES.encode())


def _lane(asked: Asked) -> int:
    """The lane of a call: messages keep their order."""
    return 0 if asked.kind is _MESSAGE else asked.number


def tell(asked: Asked, outcome: Outcome) -> None:
    """Give a call its outcome."""
    waiter = asked.waiter
    if asked.kind is _STREAM:
        waiter.ended(outcome)
    elif not waiter.done():
        waiter.set_result(outcome)
