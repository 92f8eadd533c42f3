"""Metrics in Prometheus's text formats, by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aiodist.base.errors import UsageError
from aiodist.observe.metrics.catalog import MetricKind
from aiodist.observe.metrics.families import MetricFamily, families
from aiodist.observe.metrics.tally import Tally
from aiodist.observe.summary import Summary
from aiodist.observe.view import JobView

if TYPE_CHECKING:
    from prometheus_client.core import Metric

KEY = "key"
"""The label that all have: the key of the job, as `aiodist jobs` shows it."""


def need() -> None:
    """Raise `UsageError` where prometheus-client is not installed."""
    if find_spec("prometheus_client") is None:
        raise UsageError("metrics need prometheus-client", hint="pip install 'aiodist[observe]'")


def exposition(
    summary: Summary, job: JobView, tally: Tally | None = None, accept: str = ""
) -> tuple[bytes, str]:
    """The answer to a scrape of a job.

    Args:
        summary: of the same look as `job`.
        tally: of this job's earlier looks: with it counters never fall where ranks come and go. None: what
            the ranks that are seen have counted.
        accept: the header of the request that says which formats are read: OpenMetrics, or Prometheus's own.

    Returns:
        The body, and its content type.

    Raises:
        UsageError: prometheus-client is not installed.
    """
    return render(job.key, families(summary, job, Tally() if tally is None else tally), accept)


def render(key: str, families: Sequence[MetricFamily], accept: str = "") -> tuple[bytes, str]:
    """Metrics of the job with this key → the body, and its content type. As `exposition`."""
    need()
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(key, families))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collector:
    """Gives a registry what it shows. A custom collector of prometheus-client."""

    def __init__(self, key: str, families: Sequence[MetricFamily]) -> None:
        self._key = key
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family in self._families:
            metric = family.metric
            make = CounterMetricFamily if metric.kind is MetricKind.counter else GaugeMetricFamily
            found = make(metric.stem, metric.meaning, labels=(KEY, *metric.labels), unit=metric.base_unit)
            for labels, value in family.samples:
                found.add_metric((self._key, *labels), value)
            yield found
