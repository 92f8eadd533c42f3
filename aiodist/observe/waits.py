"""Who waits for whom, from what the ranks' recorders hold. Pure.

A rank waits for the members of a group that have not issued the collective in which it waits, and for the
other side of a message that has not been issued there. Who is waited for and waits for nobody is the cause;
where everybody who is waited for waits too, they wait in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiodist.observe.view import Doing, RankView
from aiodist.recorder.reading import Group, Record

MESSAGES = {"send": "recv", "recv": "send"}
"""The operations of two ranks, and the other side of each. All others are collective."""

ANY = -1
_IDLE = (Doing.left, Doing.dead)  # such a rank waits for nobody any more


@dataclass(frozen=True, slots=True)
class Wait:
    """An operation that is pending.

    Args:
        rank: that waits.
        record: the operation.
        seconds: for which it is pending.
        absent: the ranks that have not come to it, as far as is known; (): all have.
    """

    rank: int
    record: Record
    seconds: float
    absent: tuple[int, ...]


Place = tuple[str, int, Sequence[int]]
"""A group, the same at all its members: its name, epoch and ranks."""


def place_of(group: Group) -> Place:
    """The same value at all members of a group; all of them know its ranks as a range, or none does."""
    ranks = group.ranks
    return group.name, group.epoch, ranks if isinstance(ranks, range) else tuple(ranks)


class Waits:
    """All that is pending at some ranks.

    Args:
        ranks: as they are seen.

    Attributes:
        all: what is pending, the oldest first.
        unseen: members of groups of which no recording is there.
    """

    def __init__(self, ranks: Iterable[RankView]) -> None:
        self._ranks = {rank.rank: rank for rank in ranks}
        self._collectives: dict[int, dict[Place, int]] = {}
        self._missing: dict[tuple[Place, int], list[int]] = {}
        self._messages: dict[int, set[tuple[Place, str, int, int, int]]] = {}
        for number, rank in self._ranks.items():
            self._take_in(number, rank)
        self.all = sorted(
            (
                Wait(number, record, max(0.0, rank.now - record.issued), tuple(self._absent(number, record)))
                for number, rank in self._ranks.items()
                if rank.doing not in _IDLE
                for record in rank.recording.pending
                if record.group is not None
            ),
            key=lambda wait: -wait.seconds,
        )
        self.unseen = {member for wait in self.all for member in wait.absent} - self._ranks.keys()

    def _take_in(self, number: int, rank: RankView) -> None:
        """Note what a rank has issued: how far it is in each group, and which messages."""
        issued = self._collectives.setdefault(number, {})
        messages = self._messages.setdefault(number, set())
        for record in (*rank.recording.last, *rank.recording.pending):
            if record.group is None:
                continue
            place = place_of(record.group)
            if record.op in MESSAGES:
                messages.add((place, record.op, record.root, record.tag, record.number))
            else:
                issued[place] = max(issued.get(place, -1), record.number)

    def issued(self, rank: int, group: Group) -> int:
        """The number of the last collective of a group that a rank is known to have issued; -1: none."""
        return self._collectives.get(rank, {}).get(place_of(group), -1)

    def _absent(self, rank: int, record: Record) -> Iterable[int]:
        group = record.group
        assert group is not None
        if record.op not in MESSAGES:
            key = place_of(group), record.number
            if key not in self._missing:  # most members wait in the same one
                self._missing[key] = [
                    member for member in group.ranks if self.issued(member, group) < record.number
                ]
            return self._missing[key]
        if not 0 <= record.root < len(group.ranks):
            return ()  # from anybody: nobody in particular is waited for
        peer = group.ranks[record.root]
        place, other, me = place_of(group), MESSAGES[record.op], list(group.ranks).index(rank)
        messages = self._messages.get(peer, set())
        came = (place, other, me, record.tag, record.number) in messages
        # A receive from anybody has no number of its sender's: one that is pending may be the other side.
        came = came or any(
            one[:4] == (place, other, ANY, record.tag) for one in messages if record.op == "send"
        )
        return () if came else (peer,)

    def waits_of(self, rank: int) -> list[Wait]:
        """What a rank waits in for others, the oldest first."""
        return [wait for wait in self.all if wait.rank == rank and set(wait.absent) - {rank}]

    def causes(self, start: Wait) -> tuple[tuple[int, ...], bool]:
        """The ranks for which all wait in the end, who wait because of this → them, and whether it is a
        circle in which each waits for the next."""
        seen: list[int] = []
        ends: list[int] = []
        follow = list(start.absent)
        while follow:
            rank = follow.pop(0)
            if rank in seen:
                continue
            seen.append(rank)
            further = [absent for wait in self.waits_of(rank) for absent in wait.absent if absent != rank]
            if further and not _cannot_go_on(self._ranks.get(rank)):
                follow += further
            else:
                ends.append(rank)
        return (tuple(sorted(ends)), False) if ends else (tuple(self._circle(start)), True)

    def _circle(self, start: Wait) -> list[int]:
        """Ranks of which each waits for the next, and the last for the first."""
        way = [start.rank]
        while True:
            for_whom = [absent for wait in self.waits_of(way[-1]) for absent in wait.absent]
            following = next((rank for rank in for_whom if rank != way[-1]), None)
            if following is None:
                return way
            if following in way:
                return way[way.index(following) :]
            way.append(following)


def _cannot_go_on(rank: RankView | None) -> bool:
    """Whether something else than an operation keeps a rank from going on."""
    return rank is None or rank.doing in (Doing.stopped, Doing.held, Doing.blocked, Doing.dead, Doing.left)


def orders(ranks: Mapping[int, RankView], group: Group) -> dict[int, dict[int, Record]]:
    """The collectives that the members of a group have issued in it, by rank and number, as far as known."""
    place = place_of(group)
    return {
        number: {
            record.number: record
            for record in (*rank.recording.last, *rank.recording.pending)
            if record.group is not None and record.op not in MESSAGES and place_of(record.group) == place
        }
        for number, rank in ranks.items()
        if number in place[2]
    }
