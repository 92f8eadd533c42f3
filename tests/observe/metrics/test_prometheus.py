"""Metrics as text: what Prometheus's own parsers read is what there was."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict
from prometheus_client.parser import text_string_to_metric_families as classic

from aiodist.base.errors import UsageError
from aiodist.observe.metrics import Tally, exposition, prometheus
from aiodist.observe.metrics.catalog import CATALOG, MetricKind
from aiodist.observe.summary import summary
from aiodist.observe.view import JobView
from tests.levels import COSTLY
from tests.observe.made import a_job
from tests.observe.metrics.made import a_sum, seen, told

OPEN = "application/openmetrics-text; version=1.0.0"


def a_busy_job(group: str = "world", host: str = "here") -> JobView:
    sums = [a_sum(group=group, uses=3, nbytes=2**40, waited=0.1)]
    return a_job(seen(0, host=host, sums=sums, memory=10**12))


def samples(families: Iterable[Any]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples
    }


def wanted(job: JobView) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (
            metric.prometheus,
            frozenset({"key": "cafe", **dict(zip(metric.labels, labels, strict=True))}.items()),
        ): value
        for metric, values in told(job).items()
        for labels, value in values.items()
    }


FORMATS = [
    pytest.param("", "text/plain; version=0.0.4; charset=utf-8", classic, id="prometheus"),
    pytest.param(OPEN, f"{OPEN}; charset=utf-8", strict, id="openmetrics"),
]


@pytest.mark.parametrize(("accept", "content_type", "parse"), FORMATS)
def test_what_is_read_is_what_there_was(
    accept: str, content_type: str, parse: Callable[[str], Iterable[Any]]
) -> None:
    job = a_busy_job()
    body, told_type = exposition(summary(None, job), job, accept=accept)
    assert told_type.startswith(content_type)
    found = list(parse(body.decode()))
    assert samples(found) == wanted(job)
    kinds = {family.name: (family.type, family.documentation) for family in found}
    assert kinds == {metric.stem: (metric.kind.name, metric.meaning) for metric in CATALOG}


def test_openmetrics_has_the_units() -> None:
    job = a_busy_job()
    body, _ = exposition(summary(None, job), job, accept=OPEN)
    units = dict(re.findall(r"^# UNIT (\w+) (\w+)$", body.decode(), re.M))
    assert units == {metric.stem: metric.base_unit for metric in CATALOG if metric.base_unit}


NAMES = st.text(st.characters(codec=None), max_size=120)


@pytest.mark.slow(COSTLY)
@given(NAMES, NAMES)
@settings(max_examples=40)
def test_any_name_is_read_back_as_it_is_shown(group: str, host: str) -> None:
    job = a_busy_job(group, host)
    for accept, parse in (("", classic), (OPEN, strict)):
        body, _ = exposition(summary(None, job), job, accept=accept)
        assert samples(parse(body.decode())) == wanted(job)


def test_a_tally_keeps_what_went() -> None:
    tally = Tally()
    for pid in (1, 2):
        job = a_job(seen(sums=[a_sum(uses=5)], pid=pid))
        body, _ = exposition(summary(None, job), job, tally)
    assert b'aiodist_ops_total{group="world",key="cafe",op="all_reduce"} 10.0' in body
    alone, _ = exposition(summary(None, job), job)
    assert b'aiodist_ops_total{group="world",key="cafe",op="all_reduce"} 5.0' in alone


def test_who_lacks_the_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "find_spec", lambda name: None)
    job = a_busy_job()
    with pytest.raises(UsageError, match=r"pip install 'aiodist\[observe\]'"):
        exposition(summary(None, job), job)


def test_counters_are_counters() -> None:
    assert {metric.kind for metric in CATALOG} == set(MetricKind)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_promtool_has_nothing_to_say() -> None:
    job = a_busy_job('a "strange"\\name')
    body, _ = exposition(summary(None, job), job)
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
