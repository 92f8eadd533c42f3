"""The calls that another process has asked of this one, until they are answered. Pure: time is an argument.

    begin ──▶ served ──ended──▶ gone
                └─ cancel, expired: the handler is to be stopped, and answers all the same

No number comes twice, so no call runs twice. Numbers that were passed over, since large calls come later, are
kept. Each call is answered once, cancelled or not, also one that is cancelled before it has come whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from aiodist.errors import WireError
from aiodist.services.asking import CALLS, PART_COST, PARTS, WINDOW
from aiodist.wire.calls import Says

CANCELLED = "the caller cancelled it"


class Served:
    """A call that came.

    Args:
        number: of the call on its connection.
        kind: CALL, STREAM or MESSAGE.
        nbytes: of its arguments.
        deadline: when the caller gives up; infinite for a stream.

    Attributes:
        work: what is to be cancelled with it: has `cancel`; None until it begins.
        begun: the handler has begun.
        started: its task has taken its first step; a task that is cancelled before never takes it.
        slot: the handler's slots, of which it holds one; None while it holds none.
        stopped: why it is to be stopped; '' while it is not.
        credit: bytes of parts that may be sent.
    """

    __slots__ = (
        "begun",
        "credit",
        "deadline",
        "kind",
        "nbytes",
        "number",
        "room",
        "slot",
        "started",
        "stopped",
        "work",
    )

    def __init__(self, number: int, kind: Says, nbytes: int, deadline: float) -> None:
        self.number = number
        self.kind = kind
        self.nbytes = nbytes
        self.deadline = deadline
        self.work: Any = None
        self.room: Any = None  # who waits for credit
        self.begun = self.started = False
        self.slot: Any = None
        self.stopped = ""
        self.credit = PARTS

    def spend(self, nbytes: int) -> None:
        """Note that a part was sent. The last one may be larger than the credit."""
        self.credit -= nbytes + PART_COST


class Serving:
    """The calls of one connection, from the side that was dialed.

    Attributes:
        due: time of the earliest deadline, or before it; infinite where there is none.
        last: number of the last call that came.
    """

    def __init__(self) -> None:
        self.due = math.inf
        self.last = 0
        self._calls: dict[int, Served] = {}
        self._skipped: set[int] = set()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Served]:
        return iter(list(self._calls.values()))

    def begin(self, number: int, kind: Says, nbytes: int, deadline: float) -> Served:
        """Enter a call. `WireError`: it came before, or is beyond the window."""
        if number == self.last + 1:
            self.last = number
        elif not self.skip(number):
            raise WireError(f"call {number} after call {self.last}")
        count = len(self._calls)
        if count >= CALLS or (count and self._bytes + nbytes > WINDOW):
            raise WireError(f"a call beyond {count} with {self._bytes} bytes, which nobody may ask at once")
        self._calls[number] = served = Served(number, kind, nbytes, deadline)
        self._bytes += nbytes
        if deadline < self.due:
            self.due = deadline
        return served

    def ended(self, served: Served) -> bool:
        """Take out a call that is answered now; False where that has happened."""
        if self._calls.pop(served.number, None) is None:
            return False
        self._bytes -= served.nbytes
        return True

    def cancel(self, number: int) -> Served | None:
        """The call that its caller gives up; None where it is answered, or has not come."""
        served = self._calls.get(number)
        if served is not None:
            served.stopped = served.stopped or CANCELLED
        return served

    def skip(self, number: int) -> bool:
        """Note that a number comes now; whether it had not come. `WireError` where it is too far ahead."""
        if number <= self.last:
            if number in self._skipped:
                self._skipped.remove(number)
                return True
            return False
        if number - self.last + len(self._skipped) > CALLS:
            raise WireError(f"call {number} after call {self.last}, and others between that have not come")
        self._skipped.update(range(self.last + 1, number))
        self.last = number
        return True

    def grant(self, number: int, nbytes: int) -> Served | None:
        """The stream of which more may be sent; None where it has ended meanwhile."""
        served = self._calls.get(number)
        if served is not None:
            served.credit = min(served.credit + nbytes, PARTS)
        return served

    def expired(self, now: float) -> list[Served]:
        """The calls whose deadline has passed, to be stopped; sets `due` anew."""
        late, due = [], math.inf
        for served in self._calls.values():
            if not served.stopped:
                if served.deadline <= now:
                    served.stopped = "its deadline passed"
                    late.append(served)
                else:
                    due = min(due, served.deadline)
        self.due = due
        return late
