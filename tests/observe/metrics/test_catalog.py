"""The table of metrics, and the pages that repeat it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aiodist.observe.metrics import catalog
from aiodist.observe.metrics.catalog import CATALOG, Metric, MetricKind
from aiodist.observe.metrics.prometheus import KEY

PAGE = Path(__file__).parents[3] / "docs/metrics-table.md"


def test_all_metrics_are_in_the_catalog_once() -> None:
    made = [value for value in vars(catalog).values() if isinstance(value, Metric)]
    assert len(made) == len(CATALOG) == len(set(CATALOG))
    assert set(made) == set(CATALOG)
    assert len({metric.prometheus for metric in CATALOG}) == len(CATALOG)


@pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: metric.name)
def test_names_keep_the_rules_of_both_sides(metric: Metric) -> None:
    assert re.fullmatch(r"aiodist(\.[a-z][a-z_]*[a-z])+", metric.name)
    assert re.fullmatch(r"s|By||\{[a-z]+\}", metric.unit)
    assert (metric.kind is MetricKind.counter) == metric.prometheus.endswith("_total")
    assert {"s": "seconds", "By": "bytes"}.get(metric.unit, "") == metric.base_unit
    assert metric.stem.endswith(metric.base_unit)
    assert KEY not in metric.labels
    assert {*metric.labels} <= {"op", "group", "phase", "host", "rank", "state", "kind", "script"}


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (catalog.TIME, "aiodist_op_time_seconds_total"),
        (catalog.MEMORY, "aiodist_memory_bytes"),
        (catalog.OPS, "aiodist_ops_total"),
        (catalog.JOB_INFO, "aiodist_job_info"),
    ],
    ids=str,
)
def test_names_in_prometheus(metric: Metric, name: str) -> None:
    assert metric.prometheus == name


def test_the_page_has_the_same_table() -> None:
    rows = re.findall(r"^\| `(aiodist_\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*) \|$", PAGE.read_text(), re.M)
    units = {"s": "s", "By": "bytes", "": ""}
    assert rows == [
        (
            metric.prometheus,
            metric.kind.name,
            units.get(metric.unit, metric.unit.strip("{}") + "s"),
            ", ".join(metric.labels),
            metric.meaning,
        )
        for metric in CATALOG
    ]
