"""The calls that another process has asked of this one, until they are answered. Pure: time is an argument.

    admit ──▶ (answered at once)
      └─begin──▶ served ──leave──▶ gone
                   └─ cancel, stop_late: the handler is to be stopped, and answers all the same

No number comes twice, so no call runs twice. Numbers that were passed over, since large calls come later, are
kept. Each call is answered once, cancelled or not, also one that is cancelled before it has come whole.
"""

from __future__ import annotations

from contextvars import ContextVar

from aiodist.base.errors import WireError
from aiodist.group.services.fields import PARTS, ServedFields
from aiodist.group.services.outcomes import PASSED
from aiodist.group.services.under_way import CALLS, PART_COST, UnderWay
from aiodist.net.wire.calls import Says

CANCELLED = "the caller cancelled it"


class Served(ServedFields):
    """A call that came, and is not answered at once.

    Args:
        number: of the call on its connection.
        kind, nbytes, deadline: see `UnderWay`.

    Attributes:
        work: what is to be cancelled with it: has `cancel`; None until it begins.
        begun: the handler has begun.
        started: its task has taken its first step; a task that is cancelled before never takes it.
        slot: the handler's slots, of which it holds one; None while it holds none.
        room: who waits for credit.
    """

    __slots__ = ()

    def spend(self, nbytes: int) -> None:
        """Note that a part was sent. The last one may be larger than the credit."""
        self.credit -= nbytes + PART_COST


SERVED: ContextVar[Served | None] = ContextVar("aiodist.served", default=None)
"""The call for which a handler's task runs, and the tasks that it makes."""


class Serving(UnderWay[Served]):
    """The calls of one connection, from the side that was dialed."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped: set[int] = set()

    def admit(self, number: int, nbytes: int) -> None:
        """Note that a call comes. `WireError`: it came before, or is beyond the window."""
        if number == self.last + 1:
            self.last = number
        elif not self.skip(number):
            raise WireError(f"call {number} after call {self.last}")
        calls = self.calls
        if calls and not self.fits(nbytes):
            count, under_way = len(calls), self.nbytes
            raise WireError(f"a call beyond {count} with {under_way} bytes, which nobody may ask at once")

    def begin(self, number: int, kind: Says, nbytes: int, deadline: float) -> Served:
        """Enter a call that was admitted and is answered later."""
        served = Served(number, kind, nbytes, deadline)
        self.enter(served)
        return served

    def cancel(self, number: int) -> Served | None:
        """The call that its caller gives up; None where it is answered, or has not come."""
        served = self.calls.get(number)
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
        served = self.calls.get(number)
        if served is not None:
            served.credit = min(served.credit + nbytes, PARTS)
        return served

    def stop_late(self, now: float) -> list[Served]:
        """The calls whose deadline has passed, which are stopped with this; sets `due` anew."""
        late = self.expired(now)
        for served in late:
            served.stopped = PASSED
        return late
