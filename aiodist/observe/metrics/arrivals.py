"""Who came last to each collective, counted once, from looks that see the same operations again and again.
Pure.

Only collectives count that all members of their group were seen to issue. Where more operations come between
two looks than a look shows of a rank, the others are not counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from aiodist.observe.clocks import place
from aiodist.observe.recorder.reading import Group, Record
from aiodist.observe.straggler import last_of
from aiodist.observe.view import JobView
from aiodist.observe.waits import MESSAGES


@dataclass(frozen=True, slots=True)
class LastArrival:
    """A collective to which all came.

    Args:
        last: the rank that came last; None: too close to tell.
        lost: seconds that the others together waited for it.
    """

    last: int | None
    lost: float


@dataclass(slots=True)
class _Group:
    """A group's operations that were not counted yet.

    Args:
        group: which; members: the processes that are its members now.
        after: the number of the last operation that was counted.
        calls: by number and rank.
    """

    group: Group
    members: frozenset[Hashable]
    after: int
    calls: dict[int, dict[int, Record]] = field(default_factory=dict)


class Arrivals:
    """Remembers what was counted."""

    def __init__(self) -> None:
        self._counted: dict[Group, tuple[frozenset[Hashable], int]] = {}
        self._horizon: dict[Hashable, float] = {}  # by process: all that was issued before was counted

    def take(self, job: JobView) -> Iterator[LastArrival]:
        """The collectives that were not counted yet, and in which all have come now."""
        job = place(job)
        groups = self._groups(job)
        ranks = {view.rank: view for view in job.ranks}
        for group in groups.values():
            whole = [
                number for number, by in sorted(group.calls.items()) if len(by) == len(group.group.ranks)
            ]
            for number in whole:
                found = last_of(group.calls.pop(number), ranks)
                yield LastArrival(*(found or (None, 0.0)))
            if whole:
                self._counted[group.group] = group.members, whole[-1]
        self._look_ahead(job, groups)

    def _groups(self, job: JobView) -> dict[Group, _Group]:
        """The groups of which all members are seen, with what was not counted."""
        processes = {view.rank: view.identity for view in job.ranks}
        groups: dict[Group, _Group] = {}
        for view in job.ranks:
            horizon = self._horizon.get(view.identity, 0.0)
            known: dict[int, _Group | None] = {}
            for record in reversed(view.recording.last):
                if record.issued < horizon:
                    break
                if record.group is None or record.op in MESSAGES:
                    continue
                mark = id(record.group)
                if mark not in known:
                    known[mark] = self._group(record.group, processes, groups)
                group = known[mark]
                if group is not None and record.number > group.after:
                    group.calls.setdefault(record.number, {})[view.rank] = record
        return groups

    def _group(
        self, group: Group, processes: dict[int, tuple[str, int, float]], groups: dict[Group, _Group]
    ) -> _Group | None:
        ranks = group.ranks
        if group not in groups:
            if len(ranks) < 2 or any(rank not in processes for rank in ranks):
                return None
            members: frozenset[Hashable] = frozenset(processes[rank] for rank in ranks)
            counted = self._counted.get(group)
            after = counted[1] if counted is not None and counted[0] == members else -1
            groups[group] = _Group(group, members, after)
        return groups[group]

    def _look_ahead(self, job: JobView, groups: dict[Group, _Group]) -> None:
        """Note from where on each process has to be looked at the next time; forget what has gone."""
        first: dict[int, float] = {}
        for group in groups.values():
            counted = self._counted.get(group.group, (frozenset(), -1))[1]
            for number, by in group.calls.items():
                if number > counted:
                    for rank, record in by.items():
                        first[rank] = min(record.issued, first.get(rank, record.issued))
        self._horizon = {
            view.identity: first.get(view.rank, view.recording.last[-1].issued)
            for view in job.ranks
            if view.recording.last
        }
        seen = {group.name for view in job.ranks for group in view.recording.groups}
        self._counted = {group: told for group, told in self._counted.items() if group.name in seen}
