"""Calls that have no answer yet, as both ends of a connection count them. Pure: time is an argument.

What one process can have another do is bounded at both ends by the same count: who asks waits for room
(`asking`), who serves refuses what is beyond (`serving`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Generic, TypeVar

from aiodist.net.wire.calls import Says

CALLS = 256
"""Calls of one process at another that are not answered, at most; the next ones wait where they are asked."""

WINDOW = 128 << 20
"""Bytes of their arguments, at most; more only where it is a single call's."""

PARTS = 1 << 20
"""Bytes of parts of one stream that come before any is taken."""

PART_COST = 64
"""Bytes that a part counts besides its own."""


class OpenCall:
    """A call without an answer.

    Args:
        number: of the call on its connection.
        kind: CALL, STREAM or MESSAGE.
        nbytes: of its arguments.
        deadline: when its caller gives up.

    Attributes:
        stopped: why it is given up; '' while it is not.
        credit: bytes of parts that may still be sent, of a stream.
    """

    __slots__ = ("credit", "deadline", "kind", "nbytes", "number", "stopped")

    def __init__(self, number: int, kind: Says, nbytes: int, deadline: float) -> None:
        self.number = number
        self.kind = kind
        self.nbytes = nbytes
        self.deadline = deadline
        self.stopped = ""
        self.credit = PARTS


C = TypeVar("C", bound=OpenCall)


class UnderWay(Generic[C]):
    """The calls of one connection.

    Attributes:
        calls: by number.
        nbytes: of their arguments.
        due: time of the earliest deadline, or before it; infinite where there is none.
    """

    def __init__(self) -> None:
        self.calls: dict[int, C] = {}
        self.nbytes = 0
        self.due = math.inf

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
