"""What this process asks of another, on the connection that it has dialed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from typing import Protocol

from aiodist.errors import WireError
from aiodist.services.alarm import Alarm
from aiodist.services.asking import Asked, Asking
from aiodist.services.connection import Connection
from aiodist.services.outcomes import LATE, LEAVES, LEFT, LOST, Outcome
from aiodist.transport.line import Line
from aiodist.wire import calls
from aiodist.wire.calls import ENDS, Says

_CALL, _STREAM, _MESSAGE, _PART = (
    Says.CALL,
    Says.STREAM,
    Says.MESSAGE,
    int(Says.PART),
)  # members of an enum are slow


class Waiter(Protocol):
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

    Attributes:
        asking: the calls without an answer.
        over: the connection has ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, line: Line) -> None:
        self.asking = Asking()
        self._loop = loop
        self._rooms: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._alarm = Alarm(loop, self.asking, self._expire)
        self._connection = Connection(loop, line, self._take, self._lost, self._let_in)

    @property
    def over(self) -> bool:
        """Whether the connection has ended."""
        return self._connection.over

    @property
    def waiting(self) -> Collection[object]:
        """The calls that wait for room, in order."""
        return self._rooms

    def has_room(self, nbytes: int) -> bool:
        """Whether a call may be sent now, before nobody who waits."""
        connection = self._connection
        return not (connection.over or connection.full or self._rooms) and self.asking.fits(nbytes)

    async def room(self, nbytes: int) -> None:
        """Return when a call with so many bytes may be sent, or the connection has ended."""
        first = False
        while not self.over and not (self._fits(nbytes) if first else self.has_room(nbytes)):
            let_in: asyncio.Future[None] = self._loop.create_future()
            one = nbytes, let_in
            if first:
                self._rooms.appendleft(one)
            else:
                self._rooms.append(one)
            try:
                await let_in
            except asyncio.CancelledError:
                if one in self._rooms:
                    self._rooms.remove(one)
                self._let_in()
                raise
            first = True

    def ask(
        self,
        kind: Says,
        name: bytes,
        payload: bytes,
        deadline: float,
        left: float,
        waiter: asyncio.Future[Outcome] | Waiter,
    ) -> Asked:
        """Send a call, which there is room for.

        Args:
            kind: CALL, STREAM or MESSAGE.
            name: of the handler.
            payload: the arguments.
            deadline: when it is given up here. Infinite for a stream, whose waiter sees to that.
            left: seconds until then.
            waiter: who has the answer.
        """
        asking, connection, nbytes = self.asking, self._connection, len(payload)
        asked = asking.ask(kind, nbytes, deadline, waiter)
        asked.name = name
        number = asked.number
        if connection.in_turn(lane := 0 if kind is _MESSAGE else number, nbytes):
            connection.send_in_turn(lane, kind, number, calls.request_head(left, name), payload)
        else:
            connection.send(calls.request(kind, number, left, name, payload), many=len(asking.calls))
        if asking.due < self._alarm.at:
            self._alarm.set()
        return asked

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
        if granted and not asked.stopped and not self.over:
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

    def _fits(self, nbytes: int) -> bool:
        return self.asking.fits(nbytes) and not self._connection.full

    def _take(self, kind: int, number: int, body: bytes | bytearray) -> None:
        if kind in ENDS:
            asked = self.asking.answered(number)
            if asked.kind is not _CALL:
                if not asked.stopped:
                    _tell(asked, (kind, body))
            elif not asked.waiter.done():
                asked.waiter.set_result((kind, body))
            if self._rooms:
                self._let_in()
        elif kind == _PART:
            asked = self.asking.part(number, len(body))
            if not asked.stopped:
                asked.waiter.part(body)
        else:
            raise WireError(f"a frame of kind {kind} from the side that was dialed")

    def _lost(self, why: str) -> None:
        self._alarm.stop()
        for asked in self.asking:
            self.asking.answered(asked.number)
            if not asked.stopped:
                unseen = not why and asked.number > self._connection.last > 0
                unseen = unseen or asked.number in self._connection.unsent
                _tell(asked, (Says.REFUSED, (why or LEAVES).encode()) if unseen else (LOST, why))
        self._let_in()

    def _let_in(self) -> None:
        """Let those in that wait for room, as far as there is some; all of them at the end."""
        while self._rooms and (self.over or self._fits(self._rooms[0][0])):
            let_in = self._rooms.popleft()[1]
            if not let_in.done():
                let_in.set_result(None)
                if not self.over:
                    return  # it will ask, and then there is room for the next, or not

    def _expire(self, now: float) -> None:
        for asked in self.asking.expired(now):
            self.abandon(asked)
            _tell(asked, (LATE, None))


def _lane(asked: Asked) -> int:
    """The lane of a call: messages keep their order."""
    return 0 if asked.kind is _MESSAGE else asked.number


def _tell(asked: Asked, outcome: Outcome) -> None:
    waiter = asked.waiter
    if asked.kind is _STREAM:
        waiter.ended(outcome)
    elif not waiter.done():
        waiter.set_result(outcome)
