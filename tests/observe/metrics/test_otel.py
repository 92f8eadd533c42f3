"""Metrics over OTLP, to a receiver that reads them by OpenTelemetry's own definitions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from aiodist.base.errors import UsageError
from aiodist.observe.host import host_name
from aiodist.observe.metrics import catalog, otel
from aiodist.observe.metrics.catalog import CATALOG, Metric, MetricKind
from aiodist.observe.metrics.families import families
from aiodist.observe.metrics.otel import OtlpPush, url
from aiodist.observe.metrics.tally import Tally
from aiodist.observe.summary import summary
from aiodist.observe.view import JobView
from tests.observe.made import a_job
from tests.observe.metrics.made import Values, a_sum, seen, told
from tests.observe.metrics.receiver import Receiver, receiving

CUMULATIVE = 2  # of AggregationTemporality


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A server of OTLP over HTTP."""
    with receiving() as received:
        yield received


def values(request: ExportMetricsServiceRequest) -> dict[Metric, Values]:
    """What a request says, as `made.told`; its names, units and kinds are checked."""
    by_name = {metric.name: metric for metric in CATALOG}
    found: dict[Metric, Values] = {}
    (scope,) = request.resource_metrics[0].scope_metrics
    for one in scope.metrics:
        metric = by_name[one.name]
        assert (one.unit, one.description) == (metric.unit, metric.meaning)
        assert one.WhichOneof("data") == ("sum" if metric.kind is MetricKind.counter else "gauge")
        if metric.kind is MetricKind.counter:
            assert one.sum.is_monotonic
            assert one.sum.aggregation_temporality == CUMULATIVE
        points = one.sum.data_points if metric.kind is MetricKind.counter else one.gauge.data_points
        found[metric] = {
            tuple(_text(one, f"aiodist.{label}") for label in metric.labels): one.as_int or one.as_double
            for one in points
        }
    return found


def _text(holder: Any, name: str) -> str:
    return next(str(one.value.string_value) for one in holder.attributes if one.key == name)


def pushed(push: OtlpPush, job: JobView, tally: Tally) -> str:
    return push.push(families(summary(None, job), job, tally))


def some(told: dict[Metric, Values]) -> dict[Metric, Values]:
    """Without metrics that have no values."""
    return {metric: dict(values) for metric, values in told.items() if values}


def test_what_arrives_is_what_there_was(receiver: Receiver) -> None:
    first = a_job(seen(0, sums=[a_sum(uses=3, waited=0.5)], memory=77), seen(1, cpu=2.5))
    second = a_job(seen(0, sums=[a_sum(uses=4, waited=0.5)], memory=66))
    tally = Tally()
    with contextlib.closing(OtlpPush(first, receiver.url)) as push:
        assert pushed(push, first, tally) == ""
        assert pushed(push, second, tally) == ""
    (path, one), (_, other) = receiver.requests
    assert path == "/v1/metrics"
    assert some(values(one)) == some(told(first))
    after = values(other)
    assert after[catalog.OPS] == {("all_reduce", "world"): 4}
    assert after[catalog.MEMORY] == {("here", "0"): 66}  # and no more of the rank that has gone
    assert after[catalog.CPU] == {("here", "0"): 0.0, ("here", "1"): 2.5}


def test_the_resource_says_which_job(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=here")
    job = a_job(seen())
    with contextlib.closing(OtlpPush(job, receiver.url)) as push:
        pushed(push, job, Tally())
    resource = receiver.requests[0][1].resource_metrics[0].resource
    assert _text(resource, "service.name") == "train"
    assert _text(resource, "service.instance.id") == "cafe"
    assert _text(resource, "host.name") == host_name()
    assert _text(resource, "deployment.environment") == "here"
    assert [one.value.int_value for one in resource.attributes if one.key == "process.pid"] == [os.getpid()]


def test_opentelemetrys_variables_hold(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    job = a_job(seen())
    with contextlib.closing(OtlpPush(job)) as push:
        assert pushed(push, job, Tally()) == ""
    path, request = receiver.requests[0]
    assert path == "/v1/metrics"
    assert _text(request.resource_metrics[0].resource, "service.name") == "mine"


def test_what_is_not_taken_is_told_and_nothing_else_says_it(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    job, tally = a_job(seen()), Tally()
    with contextlib.closing(OtlpPush(job, receiver.url)) as push:
        receiver.answer = 400
        assert "400" in pushed(push, job, tally)
        receiver.answer = 200
        assert pushed(push, job, tally) == ""
        push.close()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("endpoint", "where"),
    [
        ("http://collector:4318", "http://collector:4318/v1/metrics"),
        ("https://collector/", "https://collector/v1/metrics"),
        ("http://[::1]:9090/api/v1/otlp/v1/metrics", "http://[::1]:9090/api/v1/otlp/v1/metrics"),
    ],
)
def test_where_metrics_go(endpoint: str, where: str) -> None:
    assert url(endpoint) == where


@pytest.mark.parametrize("endpoint", ["train.py", "localhost:4318", "ftp://x", "http://", "http://[x"])
def test_what_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="not the URL of a collector"):
        url(endpoint)


@pytest.mark.parametrize("missing", ["opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"])
def test_who_lacks_the_library_is_told(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(UsageError, match=r"pip install 'aiodist\[otel\]'"):
        OtlpPush(a_job(seen()))
