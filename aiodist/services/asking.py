"""The calls that one process has asked of another, until they are answered. Pure: time is an argument.

    room ──ask──▶ asked ──answered──▶ gone
                    └──abandon──▶ abandoned ──answered──▶ gone

An abandoned call (cancelled, or out of time) keeps its place until the other side has answered: only then
does nothing of it run there any more. So what one process can have the other do is bounded at both ends by
the same count: `serving` refuses what is beyond.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from aiodist.errors import WireError
from aiodist.wire.calls import Says

CALLS = 256
"""Calls of one process at another that are not answered, at most; the next ones wait here."""

WINDOW = 128 << 20
"""Bytes of their arguments, at most; more only where it is a single call's."""

PARTS = 1 << 20
"""Bytes of parts of one stream that come before any is taken."""

PART_COST = 64
"""Bytes that a part counts besides its own."""


class Asked:
    """A call that was sent.

    Args:
        number: of the call on its connection.
        kind: CALL, STREAM or MESSAGE.
        nbytes: of its arguments.
        deadline: when it is given up here.
        waiter: who waits for the answer; opaque here.

    Attributes:
        abandoned: nobody waits for it any more.
    """

    __slots__ = ("abandoned", "credit", "deadline", "kind", "nbytes", "number", "untold", "waiter")

    def __init__(self, number: int, kind: Says, nbytes: int, deadline: float, waiter: Any) -> None:
        self.number = number
        self.kind = kind
        self.nbytes = nbytes
        self.deadline = deadline
        self.waiter = waiter
        self.abandoned = False
        self.credit = PARTS  # bytes of parts that may come
        self.untold = 0  # bytes of parts that were taken, and not granted anew yet

    def took(self, nbytes: int) -> int:
        """Note that a part was taken → the bytes to grant the other side now; 0: later, with others."""
        self.untold += nbytes + PART_COST
        if self.untold < PARTS // 2:
            return 0
        granted, self.untold = self.untold, 0
        self.credit += granted
        return granted


class Asking:
    """The calls of one connection.

    Attributes:
        due: time of the earliest deadline, or before it; infinite where there is none.
    """

    def __init__(self) -> None:
        self.due = math.inf
        self._calls: dict[int, Asked] = {}
        self._bytes = 0
        self._last = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Asked]:
        return iter(list(self._calls.values()))

    def has_room(self, nbytes: int) -> bool:
        """Whether a call with so many bytes of arguments may be sent now."""
        count = len(self._calls)
        return count < CALLS and (self._bytes + nbytes <= WINDOW or not count)

    def ask(self, kind: Says, nbytes: int, deadline: float, waiter: Any) -> Asked:
        """Enter a call, which there is room for."""
        self._last = number = self._last + 1
        self._calls[number] = asked = Asked(number, kind, nbytes, deadline, waiter)
        self._bytes += nbytes
        if deadline < self.due:
            self.due = deadline
        return asked

    def answered(self, number: int) -> Asked:
        """Take out a call that the other side has answered. `WireError` where it was not asked."""
        asked = self._calls.pop(number, None)
        if asked is None:
            raise WireError(f"an answer to call {number}, which is not under way")
        self._bytes -= asked.nbytes
        return asked

    def part(self, number: int, nbytes: int) -> Asked:
        """The call that a part is of. `WireError` where it is none of a stream, or nobody granted it."""
        asked = self._calls.get(number)
        if asked is None or asked.kind is not Says.STREAM:
            raise WireError(f"a part of call {number}, which is no stream")
        if asked.credit <= 0:
            raise WireError(f"a part of call {number} that was not granted")
        asked.credit -= nbytes + PART_COST
        return asked

    def abandon(self, asked: Asked) -> bool:
        """Give up a call; whether the other side has to be told."""
        if asked.abandoned or self._calls.get(asked.number) is not asked:
            return False
        asked.abandoned = True
        return True

    def expired(self, now: float) -> list[Asked]:
        """The calls whose deadline has passed and that are still waited for; sets `due` anew."""
        late, due = [], math.inf
        for asked in self._calls.values():
            if not asked.abandoned:
                if asked.deadline <= now:
                    late.append(asked)
                else:
                    due = min(due, asked.deadline)
        self.due = due
        return late
