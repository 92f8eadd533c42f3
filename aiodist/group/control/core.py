"""The control plane's decisions: flood once, route the rest, remember who is gone. Pure.

The core is told what happened and answers with what to do. It knows no socket, clock or loop; `plane`
is its shell.

Rules
    1. A flood is passed on once, to every living neighbour but the one it came from.
    2. A loss is told once, whichever rank noticed it, and told to the lost rank, too. A rank that said
       goodbye is gone but not lost; one that is told of its own loss was given up by the others, and accuses
       none.
    3. A rank that learns of a loss, by itself or from others, ends all that connects it with the lost one:
       nothing that it sends is taken any more. What it had said before still goes around: news may come late.
    4. A message for one rank goes to the neighbour that is nearest to it. Where no living neighbour is nearer
       than this rank, it is looked for on all ways, as a flood, which passes each rank once: so it arrives if
       there is any way over the living. A rank that passes nothing on for now counts as not living, there.

Where two ranks cannot reach each other but others reach both, each accuses the other. The one that is
accused first at a third rank is given up there and tells it nothing more; in a larger group both may be.
Which of them goes on is not decided here (membership does that): only that nobody waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from aiodist.base.errors import WireError
from aiodist.group.control.messages import EVERYBODY, Message, Say
from aiodist.group.control.overlay import neighbours, next_hop


@dataclass(frozen=True, slots=True)
class Transmit:
    """An order to write this message on the link to this neighbour."""

    neighbour: int
    message: Message


@dataclass(frozen=True, slots=True)
class Deliver:
    """An order to hand this message to this process."""

    message: Message


@dataclass(frozen=True, slots=True)
class Drop:
    """An order to end all that connects this process with a lost rank, after what is transmitted."""

    rank: int


Effect = Transmit | Deliver | Drop

_NAMES = {Say.lost: 0, Say.blocked: 0, Say.left: 1}  # where in its body a message names a rank

HOPS = 64
"""Links that a message for one rank crosses on its route; then its receiver is searched for."""


class ControlCore:
    """One rank's part of the control plane.

    Attributes:
        lost: who is lost, and why.
        silence: of those, how many seconds after its last sign of life that was noticed, where that is known.
        proven: of those, whose end this process has seen for itself: the kernel says that the process ended.
        departed: neighbours that said goodbye.
        avoided: ranks that pass nothing on for now; messages for others go around them.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.neighbours = neighbours(rank, size)
        self.lost: dict[int, str] = {}
        self.silence: dict[int, float] = {}
        self.proven: set[int] = set()
        self.departed: set[int] = set()
        self.avoided: Collection[int] = ()
        self._numbers = itertools.count(1)
        # Numbers of one origin rise, but a flood can overtake another on a shorter way: remember which
        # were seen, and forget all below a floor that no message in flight can still carry.
        self._seen: dict[int, set[int]] = {}

    def flood(self, say: Say, *body: Any) -> list[Effect]:
        """Tell everybody."""
        return self._spread(self.notice(say, *body), came_from=None)

    def notice(self, say: Say, *body: Any) -> Message:
        """A message to everybody, for a caller that sends it to all neighbours itself. For any thread."""
        return self._message(say, EVERYBODY, body)

    def tell(self, target: int, say: Say, *body: Any) -> list[Effect]:
        """Tell one rank; this process itself, too."""
        return self._route(self._message(say, target, body))

    def lose(self, rank: int, cause: str, silence: float | None = None, proven: bool = False) -> list[Effect]:
        """Give up a rank that is gone without goodbye, as this process noticed. Told to everybody, once.

        Args:
            rank: who.
            cause: how that was noticed.
            silence: seconds since its last sign of life, where that is known.
            proven: whether the kernel says that its process has ended.
        """
        if rank == self.rank:
            return []
        if proven:
            self.proven.add(rank)
        if rank in self.lost or rank in self.departed or self.rank in self.lost:
            return []
        millis = -1 if silence is None else round(silence * 1000)
        return self._give_up(self._message(Say.lost, EVERYBODY, (rank, cause, millis)), came_from=None)

    def depart(self, rank: int) -> None:
        """Note that a neighbour said goodbye."""
        if rank not in self.lost:
            self.departed.add(rank)

    def check(self, message: Message) -> None:
        """Raise `WireError` if a message names ranks that there are not: each would be remembered. A
        neighbour that passes one on could have seen that."""
        named = [message.origin, *([message.target] if message.target != EVERYBODY else [])]
        if message.say in _NAMES:
            named.append(message.body[_NAMES[message.say]])
        if not all(0 <= rank < self.size for rank in named):
            raise WireError(f"it names a rank that is none of {self.size}")

    def receive(self, neighbour: int, message: Message) -> list[Effect]:
        """Take a message that came in over the link to `neighbour`."""
        if message.target != EVERYBODY:
            return self._route(message, came_from=neighbour)
        if message.origin == self.rank or not self._first_time(message):
            return []
        if message.say in (Say.lost, Say.blocked) and message.body[0] in self._gone():
            return []  # all neighbours were told when this rank learned of it
        if message.say is Say.lost:
            return self._give_up(message, came_from=neighbour)
        return [Deliver(message), *self._spread(message, came_from=neighbour)]

    # ── routes ───────────────────────────────────────────────────────────────────────────────────────

    def _message(self, say: Say, target: int, body: tuple[Any, ...]) -> Message:
        return Message(say, self.rank, next(self._numbers), target, HOPS, body)

    def _give_up(self, message: Message, came_from: int | None) -> list[Effect]:
        """Give up a rank, of which this is the news."""
        rank, cause, millis = message.body
        self.lost[rank] = cause
        if millis >= 0:
            self.silence[rank] = millis / 1000
        effects: list[Effect] = [Deliver(message), *self._spread(message, came_from)]
        if rank == self.rank:
            return effects
        if rank in self.neighbours:
            effects.append(Transmit(rank, message))  # should it live after all, it must not wait for us
        return [*effects, Drop(rank)]

    def _gone(self) -> set[int]:
        return self.departed | self.lost.keys()

    def _spread(self, message: Message, came_from: int | None) -> list[Effect]:
        gone = self._gone()
        return [Transmit(n, message) for n in self.neighbours if n != came_from and n not in gone]

    def _route(self, message: Message, came_from: int | None = None) -> list[Effect]:
        target, searching = message.target, message.hops <= 0
        if target == self.rank:
            return [] if searching and not self._first_time(message) else [Deliver(message)]
        gone = self._gone()
        if target in gone:
            return []
        if not searching:
            hop = next_hop(self.rank, target, self.size, gone.union(self.avoided) - {target})
            if hop is not None:
                return [Transmit(hop, replace(message, hops=message.hops - 1))]
            came_from = None  # the way may lead back
        if not self._first_time(message):
            return []
        found = replace(message, hops=0)
        return [Transmit(target, found)] if target in self.neighbours else self._spread(found, came_from)

    def _first_time(self, message: Message) -> bool:
        seen = self._seen.setdefault(message.origin, set())
        if message.number in seen:
            return False
        seen.add(message.number)
        if len(seen) > 4096:
            floor = max(seen) - 2048
            self._seen[message.origin] = {number for number in seen if number > floor}
        return True
