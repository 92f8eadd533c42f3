"""A job's metrics as plain values, from which any format is made. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from aiodist.observe.calls import calls_of
from aiodist.observe.clocks import UNKNOWN, place
from aiodist.observe.metrics import catalog
from aiodist.observe.metrics.catalog import CATALOG, Metric
from aiodist.observe.metrics.labels import ranks, text
from aiodist.observe.metrics.tally import Tally
from aiodist.observe.summary import Summary
from aiodist.observe.verdict import KINDS
from aiodist.observe.view import Doing, JobView, RankView

UNSEEN = "unseen"
"""The state of ranks of which nothing is seen."""

Sample = tuple[tuple[str, ...], float]
"""The values of a metric's labels, and its own."""

_Gauge = Callable[[Summary, JobView, Tally], Iterable[Sample]]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """All values of a metric; each has labels of its own."""

    metric: Metric
    samples: tuple[Sample, ...]


def families(summary: Summary, job: JobView, tally: Tally) -> tuple[MetricFamily, ...]:
    """All metrics of a job.

    Args:
        summary: of the same look as `job`.
        tally: of this job's earlier looks; what is new in this one is added.
    """
    with tally.gate:  # two may scrape at once
        tally.take(job)
        return tuple(MetricFamily(metric, tuple(_samples(metric, summary, job, tally))) for metric in CATALOG)


def _samples(metric: Metric, summary: Summary, job: JobView, tally: Tally) -> Iterable[Sample]:
    if (gauge := _GAUGES.get(metric)) is None:
        return tally.totals.get(metric, {}).items()
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for labels, value in gauge(summary, job, tally):
        found[labels].append(value)
    return ((labels, metric.together(values)) for labels, values in found.items())


def _ranks(summary: Summary, job: JobView, tally: Tally) -> Iterable[Sample]:
    for doing in Doing:
        yield (doing.name,), summary.totals.doing.get(doing.name, 0)
    yield (UNSEEN,), max(0, summary.size - len(summary.rows))


def _verdicts(summary: Summary, job: JobView, tally: Tally) -> Iterable[Sample]:
    counts = Counter(verdict.kind for verdict in summary.verdicts)
    for kind in KINDS:
        yield (kind,), counts[kind]


def _in_flight(summary: Summary, job: JobView, tally: Tally) -> Iterable[Sample]:
    for labels in tally.totals.get(catalog.OPS, {}):
        yield labels, 0
    for view in _living(job):
        for record in view.recording.pending:
            yield (text(record.op), tally.labels.group(record.group.name if record.group else None)), 1


def _calls(summary: Summary, job: JobView, tally: Tally) -> Iterable[Sample]:
    who = ranks(job)
    for view in _living(job):
        calls = calls_of(view)
        yield (*who[view.rank], "asked"), calls.asked
        yield (*who[view.rank], "served"), calls.served


def _of_ranks(value: Callable[[RankView], float]) -> _Gauge:
    """A gauge of each rank whose process lives."""

    def gauge(summary: Summary, job: JobView, tally: Tally) -> Iterable[Sample]:
        who = ranks(job)
        for view in _living(job):
            yield who[view.rank], value(view)

    return gauge


def _living(job: JobView) -> Iterator[RankView]:
    return (view for view in job.ranks if view.doing not in (Doing.dead, Doing.left))


def _clocks(job: JobView) -> Iterator[RankView]:
    """The lowest rank of each host whose clock is known."""
    of_host: dict[str, RankView] = {}
    for view in place(job).ranks:
        if view.error < UNKNOWN:
            of_host.setdefault(view.host, view)
    return iter(of_host.values())


_GAUGES: Mapping[Metric, _Gauge] = {
    catalog.JOB_INFO: lambda summary, job, tally: [((text(summary.script),), 1)],
    catalog.START: lambda summary, job, tally: [((), view.recording.since) for view in job.ranks],
    catalog.WORLD_SIZE: lambda summary, job, tally: [((), summary.size)],
    catalog.EPOCH: lambda summary, job, tally: [((), summary.epoch)],
    catalog.RANKS: _ranks,
    catalog.VERDICTS: _verdicts,
    catalog.IN_FLIGHT: _in_flight,
    catalog.OLDEST: lambda summary, job, tally: [
        ((), 0.0),
        *(((), view.now - one.issued) for view in _living(job) for one in view.recording.pending[:1]),
    ],
    catalog.CALLS: _calls,
    catalog.LAG: _of_ranks(lambda view: view.recording.vitals.late),
    catalog.MEMORY: _of_ranks(lambda view: view.memory),
    catalog.OFFSET: lambda summary, job, tally: [
        ((text(view.host),), view.recording.offset - view.shift - job.ranks[0].recording.offset)
        for view in _clocks(job)
    ],
    catalog.ERROR: lambda summary, job, tally: [((text(view.host),), view.error) for view in _clocks(job)],
    catalog.RTT: lambda summary, job, tally: [
        ((), link.rtt) for view in _living(job) for link in view.recording.links
    ],
}
