"""Calls that have no answer yet, as both ends of a connection count them. Pure: time is an argument.

What one process can have another do is bounded at both ends by the same count: who asks waits for room
(`asking`), who serves refuses what is beyond (`serving`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Generic, TypeVar

from aiodist.group.services.fields import OpenCall, TableFields

CALLS = 256
"""Calls of one process at another that are not answered, at most; the next ones wait where they are asked."""

WINDOW = 128 << 20
"""Bytes of their arguments, at most; more only where it is a single call's."""

PART_COST = 64
"""Bytes that a part counts besides its own."""


C = TypeVar("C", bound=OpenCall)


class UnderWay(TableFields, Generic[C]):
    """The calls of one connection, which have no answer yet.

    Attributes:
        calls: by number. A call has a kind, the bytes of its arguments, a deadline when its caller gives up;
            `stopped`, why it is given up, '' while it is not; and, of a stream, the `credit`: bytes of parts
            that may still be sent.
        nbytes: of their arguments.
        last: number of the last one.
        due: time of the earliest deadline, or before it; infinite where there is none.
    """

    calls: dict[int, C]

    def __iter__(self) -> Iterator[C]:
        return iter(list(self.calls.values()))

    def fits(self, nbytes: int) -> bool:
        """Whether a call with so many bytes of arguments may be under way, too."""
        calls = self.calls
        return not calls or (len(calls) < CALLS and self.nbytes + nbytes <= WINDOW)

    def enter(self, call: C) -> None:
        """Count a call, from now on."""
        self.calls[call.number] = call
        self.nbytes += call.nbytes
        if call.deadline < self.due:
            self.due = call.deadline

    def leave(self, number: int) -> C | None:
        """Take out a call that is answered; None where it is not under way."""
        call = self.calls.pop(number, None)
        if call is not None:
            self.nbytes -= call.nbytes
        return call

    def expired(self, now: float) -> list[C]:
        """The calls whose deadline has passed and that nobody has stopped; sets `due` anew."""
        going = [call for call in self.calls.values() if not call.stopped]
        self.due = min((call.deadline for call in going if call.deadline > now), default=math.inf)
        return [call for call in going if call.deadline <= now]
