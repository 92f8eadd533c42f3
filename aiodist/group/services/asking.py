"""The calls that one process has asked of another, until they are answered. Pure: time is an argument.

    waits ──ask──▶ asked ──answered──▶ gone
                     └──abandon──▶ abandoned ──answered──▶ gone

An abandoned call (cancelled, or out of time) keeps its place until the other side has answered: only then
does nothing of it run there any more.
"""

from __future__ import annotations

from aiodist.base.errors import WireError
from aiodist.group.services.fields import PARTS, AskedFields
from aiodist.group.services.serving import SERVED
from aiodist.group.services.under_way import PART_COST, UnderWay
from aiodist.net.wire.calls import Says


class Asked(AskedFields):
    """A call that is asked, or waits to be.

    Args:
        kind: CALL, STREAM or MESSAGE.
        waiter: who waits for the answer; opaque here.

    Attributes:
        number: 0 until it is asked; see `UnderWay` for others.
        name: of the handler; b"": of a message.
        payload: its arguments, until it is asked.
        timer: rings where it waits for too long; None: nothing does.
        by: the call of another process for which a handler of this one asks; None: no handler does.
        untold: bytes of parts that were taken, and not granted anew yet.
    """

    __slots__ = ()

    def asks(self, name: bytes, payload: bytes, deadline: float) -> None:
        """Note what it asks, and until when."""
        self.by = SERVED.get()
        self.name = name
        self.payload = payload
        self.nbytes = len(payload)
        self.deadline = deadline

    def took(self, nbytes: int) -> int:
        """Note that a part was taken → the bytes to grant the other side now; 0: later, with others."""
        self.untold += nbytes + PART_COST
        if self.untold < PARTS // 2:
            return 0
        granted, self.untold = self.untold, 0
        self.credit += granted
        return granted


class Asking(UnderWay[Asked]):
    """The calls of one connection, from the side that dialed."""

    def ask(self, asked: Asked) -> None:
        """Enter a call, which fits, under a number of its own."""
        self.last = asked.number = self.last + 1
        self.enter(asked)

    def answered(self, number: int) -> Asked:
        """Take out a call that the other side has answered. `WireError` where it was not asked."""
        asked = self.leave(number)
        if asked is None:
            raise WireError(f"an answer to call {number}, which is not under way")
        return asked

    def part(self, number: int, nbytes: int) -> Asked:
        """The call that a part is of. `WireError` where it is none of a stream, or nobody granted it."""
        asked = self.calls.get(number)
        if asked is None or asked.kind is not Says.STREAM:
            raise WireError(f"a part of call {number}, which is no stream")
        if asked.credit <= 0:
            raise WireError(f"a part of call {number} that was not granted")
        asked.credit -= nbytes + PART_COST
        return asked

    def abandon(self, asked: Asked) -> bool:
        """Give up a call; whether the other side has to be told."""
        if asked.stopped or self.calls.get(asked.number) is not asked:
            return False
        asked.stopped = "nobody waits for it"
        return True
