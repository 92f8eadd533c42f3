"""Metrics pushed over OTLP (HTTP, protobuf), by OpenTelemetry's SDK.

Its own variables hold: OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS, _CERTIFICATE, OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES and so on.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiodist.base.errors import UsageError
from aiodist.base.sanitize import one_line
from aiodist.observe.host import host_name
from aiodist.observe.metrics.catalog import CATALOG, Metric, MetricKind
from aiodist.observe.metrics.families import MetricFamily
from aiodist.observe.metrics.labels import text
from aiodist.observe.view import JobView

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

PREFIX = "aiodist."
"""Before the names of attributes, which are those of labels."""

_PATH = "/v1/metrics"


def need() -> None:
    """Raise `UsageError` where OpenTelemetry's SDK is not installed, or its exporter."""
    try:
        found = find_spec("opentelemetry.sdk") and find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if not found:
        raise UsageError("OTLP needs OpenTelemetry's SDK", hint="pip install 'aiodist[otel]'")


def url(endpoint: str) -> str:
    """Where metrics go, of a collector: the path of OTLP is added where there is none.

    Raises:
        UsageError: it is no URL.
    """
    try:
        parts = urlsplit(endpoint)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        known = False
    if not known:
        raise UsageError(
            f"{endpoint!r} is not the URL of a collector", hint="Write for example http://localhost:4318"
        )
    return endpoint if parts.path.strip("/") else parts._replace(path=_PATH).geturl()


@contextmanager
def _words() -> Iterator[list[str]]:
    """Collect what the exporter logs meanwhile: it tells its errors nowhere else."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("opentelemetry")
    before = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield said
    finally:
        log.propagate = before
        log.removeHandler(handler)


class OtlpPush:
    """Pushes the metrics of one job, when it is told to.

    Args:
        job: whose; the attributes of the resource are made of it.
        endpoint: URL of the collector; None: OpenTelemetry's variables say it, or it is on this host.

    Raises:
        UsageError: OpenTelemetry's SDK is not installed.
    """

    def __init__(self, job: JobView, endpoint: str | None = None) -> None:
        need()
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        self._closed = self._arrived = False
        self._families: dict[Metric, MetricFamily] = {}
        exporter = OTLPMetricExporter(endpoint=url(endpoint) if endpoint else None)
        export = exporter.export

        def noted(*args: Any, **more: Any) -> MetricExportResult:
            result = export(*args, **more)
            self._arrived = result is MetricExportResult.SUCCESS
            return result

        exporter.export = noted  # type: ignore[method-assign]
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf)
        own = Resource.create(
            {
                "service.name": text(job.name).removesuffix(".py"),
                "service.instance.id": job.key,
                "host.name": host_name(),
                "process.pid": os.getpid(),
            }
        )
        self._provider = MeterProvider(
            [reader], own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        meter = self._provider.get_meter("aiodist")
        for metric in CATALOG:
            make: Any = (
                meter.create_observable_counter
                if metric.kind is MetricKind.counter
                else meter.create_observable_gauge
            )
            make(metric.name, [self._observe(metric)], unit=metric.unit, description=metric.meaning)

    def _observe(self, metric: Metric) -> Callable[[CallbackOptions], Iterator[Observation]]:
        from opentelemetry.metrics import Observation

        names = [PREFIX + label for label in metric.labels]

        def observe(_options: CallbackOptions) -> Iterator[Observation]:
            family = self._families.get(metric)
            for labels, value in family.samples if family is not None else ():
                yield Observation(value, dict(zip(names, labels, strict=True)))

        return observe

    def push(self, families: Sequence[MetricFamily]) -> str:
        """Send these. It blocks, for as long as OpenTelemetry tries again.

        Returns:
            Why they did not arrive, in one line; '' where they did.
        """
        self._families = {family.metric: family for family in families}
        self._arrived = False
        with _words() as said:
            self._provider.force_flush()
        return "" if self._arrived else one_line(next(iter(said), "OpenTelemetry does not say why"))

    def close(self) -> None:
        """Let go of the connection, also while `push` waits for it. May be called twice."""
        if not self._closed:
            self._closed = True
            self._provider.shutdown()
