"""Counters that only grow, of a job whose ranks come and go. Pure.

A recording counts from its process's begin, and goes with it. What it counts since the look before is added
here, and stays. A recording that is not seen for a while goes on from where it was.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping

from aiodist.observe.metrics import catalog
from aiodist.observe.metrics.arrivals import Arrivals
from aiodist.observe.metrics.catalog import Metric
from aiodist.observe.metrics.labels import Labels, ranks, text
from aiodist.observe.view import JobView, RankView

MOST_GONE = 10_000
"""Recordings that are not seen any more and whose counts are remembered, should they be seen again."""

MOST_COUNTS = 10_000
"""Counts of a recording that are remembered though they are not told any more."""

Values = dict[tuple[str, ...], float]
"""Of a metric: by the values of its labels."""

Count = tuple[Metric, tuple[str, ...], Hashable, float]
"""What a recording says: of which metric, with which labels, its own name for it, and how much in all."""


def _ops(view: RankView, labels: Labels) -> Iterator[Count]:
    for one in view.recording.sums:
        if one.group is None:
            continue  # what groups have done that are gone: it was counted with them
        mark = one.group, one.op, one.dtype, one.shape, one.reduce, one.root, one.tag
        op = text(one.op), labels.group(one.group.name if one.group is not None else None)
        yield catalog.OPS, op, mark, one.uses
        yield catalog.FAILED, op, mark, one.failed
        yield catalog.PAYLOAD, op, mark, one.total
        yield catalog.TIMED, op, mark, one.slept
        yield catalog.TIME, (*op, "waiting"), (mark, "waiting"), one.waited
        yield catalog.TIME, (*op, "moving"), (mark, "moving"), one.moved


def _links(view: RankView) -> Iterator[Count]:
    traffic: dict[int, list[float]] = {}
    for link in view.recording.links:  # there may be several to a peer
        of_peer = traffic.setdefault(link.rank, [0.0, 0.0, 0.0])
        for place, value in enumerate((link.sent, link.busy, link.again)):
            of_peer[place] += value
    for peer, values in traffic.items():
        for metric, value in zip((catalog.SENT, catalog.BUSY, catalog.AGAIN), values, strict=True):
            yield metric, (), peer, value


def _counts(view: RankView, who: tuple[str, str], labels: Labels) -> Iterator[Count]:
    """All that a rank counts."""
    yield from _ops(view, labels)
    yield from _links(view)
    yield catalog.WAITING, who, None, sum(one.waited for one in view.recording.sums)
    yield catalog.CPU, who, None, view.cpu
    yield catalog.EVENTS, (), None, len(view.recording.events)


_ANEW = frozenset((catalog.SENT, catalog.BUSY, catalog.AGAIN))
"""What begins at 0 again while the process lives: a connection is made anew."""


class Tally:
    """The counters of one job.

    Attributes:
        labels: the names that it has let in.
        gate: for who shares it with other threads.
    """

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.labels = Labels()
        self._totals: dict[Metric, Values] = defaultdict(dict)
        self._before: dict[Hashable, dict[Hashable, float]] = {}  # the last seen last
        self._arrivals = Arrivals()

    @property
    def totals(self) -> Mapping[Metric, Mapping[tuple[str, ...], float]]:
        """All that was counted."""
        return self._totals

    def take(self, job: JobView) -> None:
        """Add what is new. Looking at the same again adds nothing."""
        for metric in _ALWAYS:
            self._add(metric, (), 0.0)
        who = ranks(job)
        for view in job.ranks:
            before = self._before.pop(view.identity, {})
            now: dict[Hashable, float] = {}
            for metric, labels, mark, value in _counts(view, who[view.rank], self.labels):
                key = metric, mark
                known = before.get(key, 0.0)
                now[key] = value
                self._add(metric, labels, value if value < known and metric in _ANEW else value - known)
            if len(before) <= MOST_COUNTS:  # groups may come and go without end
                now = before | now
            self._before[view.identity] = now
        self._take_arrivals(job, who)
        gone = len(self._before) - len(job.ranks) - MOST_GONE
        for identity in list(self._before)[: max(0, gone)]:
            del self._before[identity]

    def _take_arrivals(self, job: JobView, who: Mapping[int, tuple[str, str]]) -> None:
        for labels in who.values():
            self._add(catalog.LAST, labels, 0.0)
            self._add(catalog.LOST, labels, 0.0)
        for arrival in self._arrivals.take(job):
            self._add(catalog.COMPARED, (), 1.0)
            if arrival.last is not None:
                self._add(catalog.LAST, who[arrival.last], 1.0)
                self._add(catalog.LOST, who[arrival.last], arrival.lost)

    def _add(self, metric: Metric, labels: tuple[str, ...], more: float) -> None:
        values = self._totals[metric]
        values[labels] = values.get(labels, 0.0) + max(0.0, more)


_ALWAYS = (catalog.COMPARED, catalog.EVENTS, *_ANEW)
"""What is told even where there was none."""
