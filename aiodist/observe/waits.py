"""Who waits for whom, from what the ranks' recorders hold. Pure.

A rank waits for the members of a group that have not issued the collective in which it waits, and for the
other side of a message that has not been issued there. Who is waited for and waits for nobody is the cause;
where everybody who is waited for waits too, they wait in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiodist.base.operations import ROLES, Kind
from aiodist.observe.recorder.reading import Group, Record
from aiodist.observe.view import Doing, RankView

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
        absent: the ranks for which it waits: they have not come to it, as far as is known.
        complete: all are known to have come to it. It is not known where a receive is from anybody, or where
            a recorder had no room to name the group.
    """

    rank: int
    record: Record
    seconds: float
    absent: tuple[int, ...]
    complete: bool


Stream = tuple[Group, str, int, int]
"""Messages that are counted together: their group, 'send' or 'recv', the group rank of the peer, the tag."""


def root_of(record: Record) -> int | None:
    """The global rank of a collective's root; None: it has none."""
    group, kind = record.group, Kind.__members__.get(record.op)
    if group is None or kind is None or not ROLES[kind].rooted or not 0 <= record.root < len(group.ranks):
        return None
    return group.ranks[record.root]


def holds_up(record: Record, late: int, other: int) -> bool:
    """Whether a member that comes late to a collective holds up another: from a root only the root does, and
    on the way to a root only the root is held up."""
    root = root_of(record)
    if root is None:
        return True
    return late == root if ROLES[Kind[record.op]].root_gives else other == root


class Waits:
    """All that is pending at some ranks.

    Args:
        ranks: as they are seen.

    Attributes:
        all: what is pending, the oldest first.
    """

    def __init__(self, ranks: Iterable[RankView]) -> None:
        self._ranks = {rank.rank: rank for rank in ranks}
        self._issued = {number: _Issued(rank) for number, rank in self._ranks.items()}
        self._absent: dict[tuple[Group, int], tuple[list[int], list[int]]] = {}
        self.all = sorted(
            (
                self._wait(number, rank, record, record.group)
                for number, rank in self._ranks.items()
                if rank.doing not in _IDLE
                for record in rank.recording.pending
                if record.group is not None
            ),
            key=lambda wait: -wait.seconds,
        )
        self._of: dict[int, list[Wait]] = {}
        for wait in self.all:
            if set(wait.absent) - {wait.rank}:
                self._of.setdefault(wait.rank, []).append(wait)

    def _wait(self, rank: int, view: RankView, record: Record, group: Group) -> Wait:
        if record.op in MESSAGES:
            known = (
                0 <= record.root < len(group.ranks)
            )  # else from anybody: nobody in particular is waited for
            missing = [group.ranks[record.root]] if known and not self._came(rank, record, group) else []
            absent = self._telling(missing, group)
        else:
            known = True
            key = group, record.number
            if key not in self._absent:  # most members wait in the same one
                late = [member for member in group.ranks if not self._has_issued(member, record, group)]
                self._absent[key] = late, self._telling(late, group)
            missing, absent = self._absent[key]
        if record.op not in MESSAGES and len(absent) > 1:
            first = [one for one in absent if holds_up(record, one, rank) or one == root_of(record)]
            absent = first or absent
        seconds = max(0.0, view.now - record.issued)
        return Wait(rank, record, seconds, tuple(absent), complete=known and not missing)

    def _telling(self, members: Iterable[int], group: Group) -> list[int]:
        """Those of these members of whom nothing is seen, or whose recording tells of the group."""
        return [one for one in members if one not in self._issued or self._issued[one].tells(group)]

    def _has_issued(self, member: int, record: Record, group: Group) -> bool:
        issued = self._issued.get(member)
        return issued is not None and issued.collectives.get(group, -1) >= record.number

    def _came(self, rank: int, record: Record, group: Group) -> bool:
        """Whether the other side of a message has been issued."""
        peer = self._issued.get(group.ranks[record.root])
        if peer is None or rank not in group.ranks:
            return False
        mine, other = (group, record.op, record.root, record.tag), MESSAGES[record.op]
        number = record.number - self._issued[rank].taken_back[mine]
        came = peer.messages[group, other, group.ranks.index(rank), record.tag]
        # A receive from anybody does not say whose message it takes: any one may be the other side.
        return came > number or (other == "recv" and peer.messages[group, other, ANY, record.tag] > 0)

    def waits_of(self, rank: int) -> list[Wait]:
        """What a rank waits in for others, the oldest first."""
        return self._of.get(rank, [])

    def for_whom(self, rank: int) -> list[int]:
        """The other ranks for which a rank waits."""
        return [absent for wait in self.waits_of(rank) for absent in wait.absent if absent != rank]

    def causes(self, start: Wait) -> tuple[int, ...]:
        """The ranks for which all wait in the end, who wait because of this; (): they wait in a circle."""
        seen: set[int] = set()
        ends: set[int] = set()
        follow = [absent for absent in start.absent if absent != start.rank]
        while follow:
            rank = follow.pop()
            if rank in seen:
                continue
            seen.add(rank)
            further = self.for_whom(rank)
            if further and not _cannot_go_on(self._ranks.get(rank)):
                follow += further
            else:
                ends.add(rank)
        return tuple(sorted(ends))

    def circle(self, start: Wait) -> list[Wait]:
        """Where `causes` finds none: waits of which each is for the rank of the next, and the last for the
        rank of the first."""
        way = [start]
        while True:
            following = next(rank for rank in way[-1].absent if rank != way[-1].rank)
            ranks = [wait.rank for wait in way]
            if following in ranks:
                return way[ranks.index(following) :]
            way.append(self.waits_of(following)[0])

    def waiting_for(self, ranks: Iterable[int]) -> list[Wait]:
        """What other ranks wait in for some of these, the oldest first."""
        wanted = set(ranks)
        return [wait for wait in self.all if wanted & set(wait.absent) and wait.rank not in wanted]

    def first(self) -> dict[int, Wait]:
        """What each rank that waits for others has waited in for longest."""
        return {rank: waits[0] for rank, waits in self._of.items()}


class _Issued:
    """What one rank has issued, as far as its recorder tells: how far it is in each group.

    Args:
        rank: as it is seen.

    Attributes:
        collectives: the number of the last one, by group.
        messages: how many there were, but for those that were taken back.
        taken_back: how many receives were.
    """

    def __init__(self, rank: RankView) -> None:
        self.collectives: dict[Group, int] = {}
        self.messages: Counter[Stream] = Counter()
        self.taken_back: Counter[Stream] = Counter()
        self._nameless = False
        recording = rank.recording
        highest: Counter[Stream] = Counter()
        counted: Counter[Group] = Counter()
        for record in (*recording.last, *recording.pending):
            if record.group is None:
                self._nameless = True
            elif record.op in MESSAGES:
                if not record.failed:
                    stream = record.group, record.op, record.root, record.tag
                    highest[stream] = max(highest[stream], record.number + 1)
            elif self.collectives.get(record.group, -1) < record.number:
                self.collectives[record.group] = record.number
        for one in recording.sums:  # they know what the ring has forgotten
            if one.group is None:
                continue
            if one.op in MESSAGES:
                stream = one.group, one.op, one.root, one.tag
                self.messages[stream] += one.uses - one.failed
                self.taken_back[stream] += one.failed if one.op == "recv" else 0
            else:
                counted[one.group] += one.uses
        for stream, count in highest.items():
            self.messages[stream] = max(self.messages[stream], count - self.taken_back[stream])
        for group, uses in counted.items():
            self.collectives.setdefault(group, uses - 1)
        self._known = set(recording.groups)

    def tells(self, group: Group) -> bool:
        """Whether that something of this group is not there says that it was not issued."""
        return not self._nameless or group in self._known


def _cannot_go_on(rank: RankView | None) -> bool:
    """Whether something else than an operation keeps a rank from going on."""
    return rank is None or rank.doing in (Doing.stopped, Doing.held, Doing.blocked, Doing.dead, Doing.left)


def orders(ranks: Mapping[int, RankView], group: Group) -> dict[int, dict[int, Record]]:
    """The collectives that the members of a group have issued in it, by rank and number, as far as known."""
    return {
        number: {
            record.number: record
            for record in (*rank.recording.last, *rank.recording.pending)
            if record.op not in MESSAGES and record.group == group
        }
        for number, rank in ranks.items()
        if number in group.ranks
    }
