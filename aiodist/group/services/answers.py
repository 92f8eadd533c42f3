"""What is answered to the calls of another process: each once, and its handler's place is free again."""

from __future__ import annotations

import asyncio

from aiodist.group.services.connection import Connection
from aiodist.group.services.notes import Notes
from aiodist.group.services.outcomes import raised
from aiodist.group.services.serving import Served, Serving
from aiodist.net.wire import calls
from aiodist.net.wire.calls import PIECE, Says


class Answers:
    """The answers on one connection.

    Args:
        serving: the calls.
        connection: on which they came.
        notes: what is logged of them.
    """

    def __init__(self, serving: Serving, connection: Connection, notes: Notes) -> None:
        self.notes = notes
        self._serving = serving
        self._connection = connection

    def at_once(self, number: int, kind: Says, body: bytes) -> None:
        """Answer a call that was never entered, or is gone."""
        connection = self._connection
        if connection.in_turn(number, len(body)):
            connection.send_in_turn(number, kind, number, body)
        else:
            connection.send(calls.frame(kind, number, body), many=len(self._serving.calls) + 1)

    def end(self, served: Served, kind: Says, body: bytes) -> None:
        """Answer a call, unless it is answered."""
        if served.slot is not None:
            served.slot.give()
            served.slot = None
        served.work = None  # its task's context holds it
        if self._serving.leave(served.number) is not None:
            self.at_once(served.number, kind, body)

    def must_wait(self, nbytes: int) -> bool:
        """Whether a body of so many bytes has to wait for `room`."""
        return self._connection.full or (nbytes > PIECE and self._connection.crowded)

    async def room(self, nbytes: int) -> None:
        """Return when a body of so many bytes may be sent."""
        await self._connection.until_room(large=nbytes > PIECE)

    async def part(self, served: Served, body: bytes) -> None:
        """Send a part of a stream, when its consumer wants it."""
        while served.credit <= 0:
            served.room = asyncio.get_running_loop().create_future()
            await served.room
        served.spend(len(body))
        self.at_once(served.number, Says.PART, body)
        if self.must_wait(len(body)):
            await self.room(len(body))

    def raised(self, served: Served, name: str, error: BaseException) -> None:
        """Tell the caller what its handler raised."""
        self.end(served, Says.RAISED, raised(error))
        self.notes.raised(name, error)

    def cancelled(self, served: Served, error: asyncio.CancelledError) -> None:
        """Answer a call whose task was cancelled: from here, or by the handler itself."""
        if served.stopped or self._connection.over:
            self.stopped(served)
        else:
            self.end(served, Says.RAISED, raised(error))

    def stopped(self, served: Served) -> None:
        """Answer a call that was stopped."""
        self.end(served, Says.DROPPED if served.begun else Says.REFUSED, served.stopped.encode())
