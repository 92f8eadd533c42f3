"""Who was a member of a job, and since when: from one view of it after another. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from aiodist.base.errors import name_ranks
from aiodist.observe.view import Doing, JobView, RankView

MOST = 200
"""Entries that are kept, the last ones."""
MANY = 8
"""Hosts above which those that begin together are told together."""

_ENDED = (Doing.left, Doing.dead)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """Something that has happened to a job's membership, or that a rank has told of.

    Args:
        at: when, in seconds since 1970.
        kind: 'joined', 'left', 'died', 'gone', 'epoch' or 'event'.
        text: what.
    """

    at: float
    kind: str
    text: str


@dataclass(slots=True)
class _Member:
    rank: int
    doing: Doing


class History:
    """The history of one job. What was before the first view is known from what the ranks recorded."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, int, float], _Member] = {}
        self._entries: deque[HistoryEntry] = deque(maxlen=MOST)
        self._events_of: dict[tuple[str, int, float], int] = {}  # how many events of each process
        self._epoch = -1

    @property
    def entries(self) -> tuple[HistoryEntry, ...]:
        """The entries, the oldest first."""
        return tuple(self._entries)

    def see(self, job: JobView, at: float) -> None:
        """Compare with what was seen before.

        Args:
            at: the present time, in seconds since 1970.
        """
        found: list[HistoryEntry] = []
        views = {view.identity: view for view in job.ranks}
        views |= {one: view for view in job.past if (one := view.identity) in self._members}
        epoch = max((view.recording.epoch for view in job.ranks), default=self._epoch)
        fresh = [view for one, view in views.items() if one not in self._members]
        hosts = _by_host(fresh)
        if len(hosts) > MANY:
            hosts = [(f"{len(hosts)} hosts", [view.rank for view in fresh])]
        if fresh:
            since = max(view.recording.since for view in fresh)
            found += [
                HistoryEntry(since, "joined", f"{name_ranks(ranks)} began on {on}") for on, ranks in hosts
            ]
        if epoch > self._epoch:
            if self._epoch >= 0:
                found.append(
                    HistoryEntry(at, "epoch", f"epoch {epoch} began, with {_size(job, epoch)} ranks")
                )
            self._epoch = epoch
        ended: dict[tuple[str, str], list[int]] = {}
        for one, member in list(self._members.items()):
            view = views.get(one)
            lived = member.doing not in _ENDED
            if view is None:
                del self._members[one]
                kind = "gone"
            else:
                kind = {Doing.left: "left", Doing.dead: "died"}.get(view.doing, "")
            if lived and kind:
                ended.setdefault((kind, one[0]), []).append(member.rank)
        for (kind, host), ranks in ended.items():
            words = {"gone": "has gone", "died": "has ended without leaving", "left": "has left"}[kind]
            many = words.replace("has", "have", 1) if len(ranks) > 1 else words
            found.append(HistoryEntry(at, kind, f"{name_ranks(sorted(ranks))} on {host} {many}"))
        found += self._events(views.values())
        for one, view in views.items():
            self._members[one] = _Member(view.rank, view.doing)
        self._entries.extend(sorted(found, key=lambda entry: entry.at))

    def _events(self, views: Iterable[RankView]) -> Iterable[HistoryEntry]:
        for view in views:
            events = view.recording.events
            known = self._events_of.get(view.identity, 0)
            if len(events) > known:
                self._events_of[view.identity] = len(events)
                before = self._members.get(view.identity)
                who = f"rank {view.rank}"
                if before is not None and before.rank != view.rank:  # the event may be why
                    who = f"rank {before.rank}, now {who}"
                for event in events[known:]:
                    yield HistoryEntry(view.recording.offset + event.at, "event", f"{who}: {event.text}")


def _by_host(views: Iterable[RankView]) -> list[tuple[str, list[int]]]:
    hosts: dict[str, list[int]] = {}
    for view in views:
        hosts.setdefault(view.host, []).append(view.rank)
    return [(host, sorted(ranks)) for host, ranks in hosts.items()]


def _size(job: JobView, epoch: int) -> int:
    return max(view.recording.size for view in job.ranks if view.recording.epoch == epoch)
