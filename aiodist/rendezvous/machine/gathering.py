"""Gathers: each rank of a world leaves a value, and all get everybody's."""

from __future__ import annotations

from itertools import islice

from aiodist.errors import name_ranks
from aiodist.rendezvous.events import MAX_MISSING, Reply
from aiodist.rendezvous.machine.leases import Leases
from aiodist.rendezvous.machine.tables import ANSWER_COST, CALL_COST, Call, Kind, Round, weight
from aiodist.rendezvous.schema import RefusedError, check_name
from aiodist.timeouts import spoken

MAX_WORLD = 1 << 16  # ranks; each has two bytes where they are kept
_ROUND_COST = 600  # bytes that the tables of a round take where one rank alone has come
_GONE_COST = 120  # bytes that it takes to remember a rank that gave up


class Gathering(Leases):
    """Adds gather."""

    def _do_gather(
        self, call: Call, now: float, name: str, rank: int, size: int, card: bytes, timeout: float
    ) -> None:
        if not 0 <= rank < size:
            raise RefusedError(f"rank {rank} is not in a world of {size}")
        if size > MAX_WORLD:
            raise RefusedError(f"a world of {size} ranks; {MAX_WORLD} can meet")
        check_name(name)
        gather = self._rounds.get(name)
        if gather is not None and size != gather.size:
            here = name_ranks(list(islice(gather.cards, MAX_MISSING)), len(gather.cards))
            raise RefusedError(
                f"rank {rank} comes to '{name}' in a world of {size}, {here} in one of {gather.size}",
                "Give every process the same WORLD_SIZE",
                "conflict",
            )
        other = None if gather is None else gather.calls.get(rank)
        if other is not None and not self._sessions[other[0]].connected:
            self._leave_round(other)  # a process that came back as another takes its own place
            gather = self._rounds.get(name)
        if gather is not None and rank in gather.cards:
            raise RefusedError(
                f"two processes are rank {rank} at '{name}'", "Give each process its own RANK", "conflict"
            )
        self._check_waiting()
        self._make_room(_cost(name, size, card))
        if gather is None:
            gather = self._rounds[name] = Round(size)
        gather.cards[rank] = card
        gather.calls[rank] = call
        gather.timeouts[rank] = timeout
        gather.absent = ()
        if rank in gather.gone:
            gather.gone.remove(rank)
            self.size -= _GONE_COST
        self._in_round[call] = (name, rank)
        if len(gather.cards) < size:
            self._set_timer(now + timeout, "call", call)
            return
        del self._rounds[name]
        cards = [gather.cards[r] for r in range(size)]
        self.size -= sum(_cost(name, size, card) for card in cards)
        self._gathered(cards, list(gather.calls.values()))

    def _gathered(self, cards: list[bytes], calls: list[Call]) -> None:
        """All have come: one list for all, kept until each has it."""
        weight = sum(map(len, cards))
        for call in calls:
            del self._in_round[call]
            self._keep_gathered(call, cards, weight // len(calls))
            self._effects.append(Reply(*call, cards))
        self._note(Kind.gathered, cards, [list(call) for call in calls])

    def _keep_gathered(self, call: Call, cards: list[bytes], cost: int) -> None:
        session = self._sessions.get(call[0])
        if session is not None:
            session.answered[call[1]] = Reply(*call, cards)
            session.last = max(session.last, call[1])
            self.size += ANSWER_COST
            self._weigh(session, call[1], cost)

    def _is_in_a_round(self, client: bytes) -> bool:
        return any(call[0] == client for call in self._in_round)

    def _leave_round(self, call: Call) -> None:
        name, rank = self._in_round.pop(call, ("", -1))
        if rank >= 0:
            gather = self._rounds[name]
            self.size -= _cost(name, gather.size, gather.cards[rank])
            del gather.cards[rank], gather.calls[rank]
            if rank not in gather.gone:
                gather.absent = ()
            if not gather.cards:
                self.size -= _GONE_COST * len(gather.gone)
                del self._rounds[name]

    def _gathered_in_vain(self, call: Call) -> tuple[str, str, tuple[int, ...]]:
        """Forget a call whose time is up → message, hint and missing ranks of its failure."""
        name, rank = self._in_round[call]
        gather = self._rounds[name]
        count = gather.size - len(gather.cards) - len(gather.gone)
        if count:
            missing = gather.absent = gather.absent or _never_came(gather)
        else:  # all came, and never all at once
            count = len(gather.gone)
            missing = tuple(sorted(islice(gather.gone, MAX_MISSING)))
        gather.gone.add(rank)
        self.size += _GONE_COST
        self._leave_round(call)
        message = (
            f"{name_ranks(missing, count)} did not come to '{name}' within {spoken(gather.timeouts[rank])}"
        )
        hint = "See whether every process was started, with the same WORLD_SIZE and store, and what it prints"
        return message, hint, missing


def _never_came(gather: Round) -> tuple[int, ...]:
    """The first of them, for all who give up until somebody comes."""
    absent = (rank for rank in range(gather.size) if rank not in gather.cards and rank not in gather.gone)
    return tuple(islice(absent, MAX_MISSING))


def _cost(name: str, size: int, card: bytes) -> int:
    """Bytes that a rank takes while it waits: enough for its failure, too, and for those that this names."""
    return CALL_COST + _ROUND_COST + weight(name) + len(card) + 2 * min(size, MAX_MISSING)
