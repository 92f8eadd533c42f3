"""The control plane's decisions: flood once, route the rest, remember who is gone. Pure.

The core is told what happened and answers with what to do. It knows no socket, clock or loop; `plane`
is its shell.

Rules
    1. A flood is passed on once, to every living neighbour but the one it came from.
    2. A loss is told once, whoever noticed it. A rank that said goodbye is gone but not lost; one that
       hears of its own loss was given up by the others.
    3. A message for one rank goes greedily around the overlay; where no way is left it is dropped, since
       everything that waits for an answer has a time limit of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiodist.control.messages import EVERYBODY, Message, Say
from aiodist.control.overlay import neighbours, next_hop


@dataclass(frozen=True, slots=True)
class Transmit:
    """Write this message on the link to this neighbour."""

    neighbour: int
    message: Message


@dataclass(frozen=True, slots=True)
class Deliver:
    """This message is for this process."""

    message: Message


Effect = Transmit | Deliver


class ControlCore:
    """One rank's part of the control plane."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.neighbours = neighbours(rank, size)
        self.lost: dict[int, str] = {}
        self.departed: set[int] = set()
        self._number = 0
        # Numbers of one origin rise, but a flood can overtake another on a shorter way: remember which
        # were seen, and forget all below a floor that no message in flight can still carry.
        self._seen: dict[int, set[int]] = {}

    def flood(self, say: Say, *body: Any) -> list[Effect]:
        """Tell everybody."""
        return self._spread(self._message(say, EVERYBODY, body), came_from=None)

    def tell(self, target: int, say: Say, *body: Any) -> list[Effect]:
        """Tell one rank; this process itself, too."""
        return self._route(self._message(say, target, body))

    def lose(self, rank: int, cause: str) -> list[Effect]:
        """This process noticed that a rank is gone without goodbye. Told to everybody, once."""
        if rank in self.lost or rank in self.departed or rank == self.rank:
            return []
        self.lost[rank] = cause
        message = self._message(Say.lost, EVERYBODY, (rank, cause))
        effects = [Deliver(message), *self._spread(message, came_from=None)]
        if rank in self.neighbours:
            effects.append(Transmit(rank, message))  # should it live after all, it must not wait for us
        return effects

    def depart(self, rank: int) -> None:
        """A neighbour said goodbye."""
        if rank not in self.lost:
            self.departed.add(rank)

    def receive(self, neighbour: int, message: Message) -> list[Effect]:
        """A message came in over the link to `neighbour`."""
        if message.target != EVERYBODY:
            return self._route(message)
        if message.origin == self.rank or not self._first_time(message):
            return []
        if message.say is Say.lost:
            rank, cause = message.body
            if rank in self.lost or rank in self.departed:
                return []  # all neighbours were told when this rank learned of it
            self.lost[rank] = cause
        return [Deliver(message), *self._spread(message, came_from=neighbour)]

    # ── routes ───────────────────────────────────────────────────────────────────────────────────────

    def _message(self, say: Say, target: int, body: tuple[Any, ...]) -> Message:
        self._number += 1
        return Message(say, self.rank, self._number, target, 64, body)

    def _gone(self) -> set[int]:
        return self.departed | self.lost.keys()

    def _spread(self, message: Message, came_from: int | None) -> list[Effect]:
        gone = self._gone()
        return [Transmit(n, message) for n in self.neighbours if n != came_from and n not in gone]

    def _route(self, message: Message) -> list[Effect]:
        if message.target == self.rank:
            return [Deliver(message)]
        hop = next_hop(self.rank, message.target, self.size, self._gone())
        if hop is None or message.hops <= 0 or message.target in self._gone():
            return []
        onward = Message(
            message.say, message.origin, message.number, message.target, message.hops - 1, message.body
        )
        return [Transmit(hop, onward)]

    def _first_time(self, message: Message) -> bool:
        seen = self._seen.setdefault(message.origin, set())
        if message.number in seen:
            return False
        seen.add(message.number)
        if len(seen) > 4096:
            floor = max(seen) - 2048
            self._seen[message.origin] = {number for number in seen if number > floor}
        return True
