"""Gathers: each rank of a world leaves a value, and all get everybody's."""

from __future__ import annotations

from aiodist.errors import name_ranks
from aiodist.rendezvous.events import Reply
from aiodist.rendezvous.machine.leases import Leases
from aiodist.rendezvous.machine.tables import ANSWER_COST, CALL_COST, Call, Kind, Round
from aiodist.rendezvous.schema import RefusedError, check_name
from aiodist.timeouts import spoken

MAX_WORLD = 1 << 16  # who is missing is listed, so this is not for a client to choose
_ROUND_COST = 600  # bytes that the tables of a round take where one rank alone has come


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
            raise RefusedError(
                f"rank {rank} comes to '{name}' in a world of {size}, "
                f"{name_ranks(list(gather.cards))} in one of {gather.size}",
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
        gather.gone.discard(rank)
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
            if not gather.cards:
                del self._rounds[name]

    def _gathered_in_vain(self, call: Call) -> tuple[str, str, tuple[int, ...]]:
        """Forget a call whose time is up → message, hint and missing ranks of its failure."""
        name, rank = self._in_round[call]
        gather = self._rounds[name]
        gather.gone.add(rank)
        away = set(range(gather.size)) - gather.cards.keys()
        missing = tuple(sorted(away - gather.gone or away))
        self._leave_round(call)
        message = f"{name_ranks(missing)} did not come to '{name}' within {spoken(gather.timeouts[rank])}"
        hint = "See whether every process was started, with the same WORLD_SIZE and store, and what it prints"
        return message, hint, missing


def _cost(name: str, size: int, card: bytes) -> int:
    """Bytes that a rank takes while it waits: enough for its failure, too, which may name the whole world."""
    return CALL_COST + _ROUND_COST + len(name) + len(card) + size // 8
