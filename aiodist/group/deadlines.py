"""Operations of a group that have not ended: the registry, its deadlines and its stall clock.

One timer serves all operations of a group. It is armed when something is in flight, so an operation
costs no timer of its own, and a loop of operations that take microseconds sees it ten times a second.

Where the timer fires late, because this process's own loop did not turn, what would have ended an operation
in time may lie in a socket, or in the loop's queue, and a loop may run its timers first. So the deadlines
that passed meanwhile are moved on from now by as much as the timer was late, but all moves of one together
by the operation's timeout at most.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nsmallest
from time import thread_time
from typing import ClassVar

from aiodist.backends.base import Messenger, Operation, Starter
from aiodist.base.types import Call
from aiodist.net.alarm import Alarm
from aiodist.net.within import happens

STALL = 0.1  # seconds without progress after which an operation asks which ranks are missing (law 4)
MOST = 32  # asked about in STALL seconds, the nearest deadline first: thousands of questions would be a stall
FEW = 2  # where others have ended meanwhile: most of those that wait wait for their turn
SHARE = 20  # the timer's work is proportional to what is in flight; it rests for so many times as long
PATIENCE = 4.0  # it asks again after 4 times as long, and again
LATE = 0.05  # seconds: a timer that comes later than this was not late because of the loop's usual work
AGAIN = 0.1  # seconds after which `drain` counts again what it need not wait for
REMEMBERED = 64  # calls that a member can still describe after they ended


@dataclass(slots=True)
class FlightEntry:
    """One operation in flight; times in seconds of the loop's clock."""

    timeout: float
    deadline: float
    ask_at: float
    asked: float = STALL
    moved: float = 0.0  # seconds by which the deadline was moved on
    late: float = 0.0  # the longest time for which the loop did not turn when the deadline passed


class Flight:
    """The operations of one group on this rank.

    Args:
        loop: whose clock and timers are used.
        stalled: called with a collective that has made no progress for a while.
        expired: called with an operation whose deadline has passed, its timeout, and seconds for which this
            loop did not turn about that time.

    Attributes:
        pauses: of all groups: whether no deadline passes now, because somebody debugs a rank.
    """

    pauses: ClassVar[Callable[[], bool]] = staticmethod(lambda: False)

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stalled: Callable[[Operation], None],
        expired: Callable[[Operation, float, float], None],
    ) -> None:
        self._loop = loop
        self._stalled = stalled
        self._expired = expired
        self._open: dict[Operation, FlightEntry] = {}
        self._recent: dict[int, Call] = {}
        self._alarm = Alarm(loop, self._tick)
        self._questions, self._next_questions = 0, 0.0  # still allowed until then
        self._moves = False  # an operation has ended since the last questions
        self._fewer = asyncio.Event()  # an operation has ended since a drain began to wait
        self.starter: Starter | None = None  # it enters what it started only when the loop turns
        self.messenger: Messenger | None = None

    def __len__(self) -> int:
        self._catch_up()
        return len(self._open)

    def _catch_up(self) -> None:
        if self.starter is not None:
            self.starter.note_all()
        if self.messenger is not None:
            self.messenger.note_all()

    def issue(self, operation: Operation, timeout: float) -> None:
        """Enter an operation that begins."""
        now = self._loop.time()
        ask_at = now + min(STALL, timeout / 2)
        self._open[operation] = FlightEntry(timeout, now + timeout, ask_at)
        operation.happened = operation.work._happened
        call = operation.call
        if not call.message:
            self._recent[call.seq] = call
            if len(self._recent) > REMEMBERED:  # numbers in between took the fast path, and are not here
                del self._recent[next(iter(self._recent))]
        if ask_at < self._alarm.at:
            self._alarm.set(ask_at)

    def ended(self, operation: Operation) -> None:
        """Take out an operation that has ended."""
        self._open.pop(operation, None)
        self._moves = True
        self._fewer.set()

    def call(self, seq: int) -> Call | None:
        """The collective issued under a number, unless that is long ago."""
        call = self._recent.get(seq)
        if call is None and self.starter is not None:
            call = self.starter.call(seq)
        if call is None:  # what is in flight is known, however many came after it
            calls = (operation.call for operation in self._open)
            call = next((call for call in calls if call.seq == seq and not call.message), None)
        return call

    def described(self, call: Call) -> str:
        """A collective in words, with the line that issued it where it is in flight."""
        self._catch_up()
        for operation in self._open:
            if operation.call.seq == call.seq and not operation.call.message:
                return f"{call.describe()}{operation.work._line()}"
        return call.describe()

    def collectives(self) -> list[int]:
        """Numbers of the collectives in flight."""
        self._catch_up()
        return [operation.call.seq for operation in self._open if not operation.call.message]

    def bound(self, limit: float) -> None:
        """Give all that has no deadline one, in so many seconds: the group closes."""
        self._catch_up()
        now = self._loop.time()
        for entry in self._open.values():
            if entry.deadline == math.inf and entry.timeout == math.inf:
                entry.timeout, entry.deadline = limit, now + limit
        if self._open:
            self._alarm.by(now + limit)

    def peers(self) -> set[int]:
        """Group ranks that messages in flight go to, or come from."""
        return {operation.peer for operation in self._open if operation.peer >= 0}

    def fail_all(self, error: BaseException) -> None:
        """Fail everything in flight; no buffer is touched any more."""
        self._catch_up()
        operations, self._open = list(self._open), {}
        self._alarm.set()
        for operation in operations:
            operation.work._fail(error)
        self._fewer.set()

    async def drain(self, but: Callable[[], int] | None = None) -> None:
        """Return when nothing is in flight, or nothing but so many operations as `but()` counts."""
        self._catch_up()
        while len(self._open) > (but() if but is not None else 0):
            self._fewer.clear()
            await happens(self._fewer, None if but is None else AGAIN)
            self._catch_up()  # what was begun meanwhile

    def _ask(self, silent: list[tuple[Operation, FlightEntry]], now: float) -> None:
        if now >= self._next_questions:
            self._next_questions, self._questions = now + STALL, FEW if self._moves else MOST
            self._moves = False
        for _, entry in silent:
            entry.ask_at = self._next_questions
        for operation, entry in nsmallest(self._questions, silent, key=lambda pair: pair[1].deadline):
            if operation in self._open:
                self._questions -= 1
                entry.asked *= PATIENCE
                entry.ask_at = now + entry.asked
                self._stalled(operation)

    def close(self) -> None:
        """Stop the timer."""
        self._alarm.set()

    def _tick(self) -> None:
        now, late = self._loop.time(), self._alarm.late
        began = thread_time()  # its own time: it may be stopped meanwhile
        for operation in self._open:
            operation.work._is_pending()  # nobody awaits it, perhaps
        silent: list[tuple[Operation, FlightEntry]] = []
        for operation, entry in list(self._open.items()):
            if operation not in self._open:
                continue  # ended by what an earlier one set off
            if entry.deadline <= now and Flight.pauses():
                entry.deadline = now + entry.timeout
            more = min(max(late, STALL), entry.timeout - entry.moved)
            if entry.deadline <= now and late > LATE and more > 0:
                entry.late = max(entry.late, late)
                entry.moved += more
                entry.deadline = now + more
                silent.append((operation, entry))
            elif entry.deadline <= now:
                entry.deadline = math.inf  # told once; ending the group may take a while
                self._expired(operation, entry.timeout, entry.late)
            elif entry.ask_at <= now:
                silent.append((operation, entry))
        self._ask(silent, now)
        if self._open:
            rested = now + SHARE * (thread_time() - began)
            self._alarm.set(max(rested, min(min(e.ask_at, e.deadline) for e in self._open.values())))
