"""Gathers: each rank of a world leaves a value, and all get everybody's."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from aiodist.rendezvous import rules
from aiodist.rendezvous.events import MAX_MISSING
from aiodist.rendezvous.machine.budget import CALL_COST, Budget, weight
from aiodist.rendezvous.machine.changes import Call
from aiodist.rendezvous.machine.sessions import Sessions
from aiodist.rendezvous.machine.timers import Timers

MAX_WORLD = 1 << 16  # ranks; each has two bytes where they are kept
_ROUND_COST = 600  # bytes that the tables of a round take where one rank alone has come
_GONE_COST = 120  # bytes that it takes to remember a rank that gave up


@dataclass(slots=True)
class GatherRound:
    """One gather that has not happened yet."""

    size: int
    cards: dict[int, bytes] = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    timeouts: dict[int, float] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # came, and gave up
    absent: tuple[int, ...] = ()  # some that never came, as last looked for; empty: look for them


@dataclass(eq=False, slots=True)
class Gathers:
    """The gathers of a store that have not happened yet."""

    budget: Budget
    timers: Timers
    sessions: Sessions
    rounds: dict[str, GatherRound] = field(default_factory=dict)
    calls: dict[Call, tuple[str, int]] = field(default_factory=dict)  # name and rank of each

    def gather(
        self, call: Call, now: float, name: str, rank: int, size: int, card: bytes, timeout: float
    ) -> None:
        """Answer as soon as all ranks have come → what they left, in the order of the ranks."""
        rules.check_rank(rank, size)
        if size > MAX_WORLD:
            raise rules.RefusedError(f"a world of {size} ranks; {MAX_WORLD} can meet")
        rules.check_name(name)
        gather = self._joined(name, rank, size)
        self.budget.begin_wait(_cost(name, size, card))
        if gather is None:
            gather = self.rounds[name] = GatherRound(size)
        gather.cards[rank] = card
        gather.calls[rank] = call
        gather.timeouts[rank] = timeout
        gather.absent = ()
        if rank in gather.gone:
            gather.gone.remove(rank)
            self.budget.size -= _GONE_COST
        self.calls[call] = (name, rank)
        if len(gather.cards) < size:
            self.timers.set(now + timeout, self, call)
            return
        del self.rounds[name]
        cards = [gather.cards[r] for r in range(size)]
        for card in cards:
            self.budget.end_wait(_cost(name, size, card))
        calls = list(gather.calls.values())
        for each in calls:
            del self.calls[each]
        self.sessions.done_together(calls, cards)

    def _joined(self, name: str, rank: int, size: int) -> GatherRound | None:
        """The round that a rank joins, None for a new one; refuses one that contradicts it."""
        gather = self.rounds.get(name)
        if gather is not None and size != gather.size:
            here = list(islice(gather.cards, MAX_MISSING))
            raise rules.other_world(name, rank, size, here, len(gather.cards), gather.size)
        if gather is not None and rank in gather.calls:
            other = gather.calls[rank]
            if self.sessions.by_client[other[0]].connected:
                raise rules.rank_taken(name, rank)
            self.forget(other)  # a process that came back as another takes its own place
        return self.rounds.get(name)

    def forget(self, call: Call) -> None:
        """Take a call out of its round, if it is in one."""
        if call not in self.calls:
            return
        name, rank = self.calls.pop(call)
        gather = self.rounds[name]
        self.budget.end_wait(_cost(name, gather.size, gather.cards[rank]))
        del gather.cards[rank], gather.calls[rank]
        if rank not in gather.gone:
            gather.absent = ()
        if not gather.cards:
            self.budget.size -= _GONE_COST * len(gather.gone)
            del self.rounds[name]

    def is_due(self, call: Call, at: float) -> bool:
        """Whether a call still waits."""
        return call in self.calls

    def time_out(self, call: Call) -> None:
        """Let a call fail whose time is up."""
        name, rank = self.calls[call]
        gather = self.rounds[name]
        count = gather.size - len(gather.cards) - len(gather.gone)
        if count:
            missing = gather.absent = gather.absent or _never_came(gather)
        else:  # all came, and never all at once
            count = len(gather.gone)
            missing = tuple(sorted(islice(gather.gone, MAX_MISSING)))
        gather.gone.add(rank)
        self.budget.size += _GONE_COST
        self.forget(call)
        self.sessions.fail(call, rules.did_not_come(name, missing, count, gather.timeouts[rank]))


def _never_came(gather: GatherRound) -> tuple[int, ...]:
    """The first of them, for all who give up until somebody comes."""
    absent = (rank for rank in range(gather.size) if rank not in gather.cards and rank not in gather.gone)
    return tuple(islice(absent, MAX_MISSING))


def _cost(name: str, size: int, card: bytes) -> int:
    """Bytes that a rank takes while it waits: enough for its failure, too, and for those that this names."""
    return CALL_COST + _ROUND_COST + weight(name) + len(card) + 2 * min(size, MAX_MISSING)
