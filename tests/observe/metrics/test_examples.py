"""The files of examples/observability: they name metrics that exist, and Prometheus's own tool takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aiodist.observe.metrics.catalog import CATALOG
from aiodist.observe.metrics.prometheus import KEY

EXAMPLES = Path(__file__).parents[3] / "examples/observability"
DASHBOARD = json.loads((EXAMPLES / "grafana.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")


def names(text: str) -> set[str]:
    return set(re.findall(r"\baiodist_\w+", text))


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    variables = " ".join(str(one["query"]) for one in DASHBOARD["templating"]["list"])
    assert names(" ".join([*EXPRESSIONS, variables])) == {metric.prometheus for metric in CATALOG}


def test_legends_and_groupings_name_labels_that_there_are() -> None:
    labels = {metric.prometheus: {KEY, *metric.labels} for metric in CATALOG}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            kept = {
                label.strip() for by in re.findall(r"by \((.*?)\)", expression) for label in by.split(",")
            }
            assert shown <= kept, expression
            assert kept <= set().union(*(labels[name] for name in names(expression))), expression


def test_panels_have_places_and_numbers_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_rules_name_metrics_that_exist() -> None:
    assert names((EXAMPLES / "rules.yml").read_text()) <= {metric.prometheus for metric in CATALOG}


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_configuration_is_valid(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "rules.yml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    (tmp_path / "aiodist.token").write_text("a token")
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    told = ",".join(f'{key}="{value}"' for key, value in {"key": "cafe", **labels}.items())
    return {"series": f"{name}{{{told}}}", "values": values}


def straggling(last: tuple[int, int], lost: int) -> list[dict[str, str]]:
    """Two ranks: how often each came last in a minute, and the seconds lost by rank 1."""
    return [
        *(
            series("aiodist_last_arrivals_total", f"0+{count}x30", host="a", rank=str(rank))
            for rank, count in enumerate(last)
        ),
        series("aiodist_arrivals_compared_total", f"0+{sum(last)}x30"),
        series("aiodist_lost_time_seconds_total", f"0+{lost}x30", host="a", rank="1"),
        series("aiodist_lost_time_seconds_total", "0+0x30", host="a", rank="0"),
        series("aiodist_world_size", "2x30"),
    ]


CASES: list[tuple[str, list[dict[str, str]], dict[str, str] | None]] = [
    (
        "AiodistRankDown",
        [series("aiodist_ranks", "0 1x30", state="dead")],
        {"key": "cafe", "state": "dead", "severity": "critical"},
    ),
    ("AiodistRankDown", [series("aiodist_ranks", "4x30", state="waiting")], None),
    (
        "AiodistStandsStill",
        [series("aiodist_op_oldest_seconds", "0+30x30")],
        {"key": "cafe", "severity": "critical"},
    ),
    ("AiodistStandsStill", [series("aiodist_op_oldest_seconds", "1x30")], None),
    (
        "AiodistStraggler",
        straggling((5, 95), 30),
        {"key": "cafe", "host": "a", "rank": "1", "severity": "warning"},
    ),
    ("AiodistStraggler", straggling((50, 50), 30), None),
    ("AiodistStraggler", straggling((5, 95), 1), None),
]


@needs_promtool
def test_alerts_come_when_they_should_and_only_then(tmp_path: Path) -> None:
    cases: list[Any] = [
        {
            "interval": "1m",
            "input_series": given,
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                    "eval_time": "20m",
                    "exp_samples": [{"labels": "{}", "value": int(labels is not None)}],
                },
                *(
                    [
                        {
                            "expr": f'ALERTS{{alertname="{alert}"}}',
                            "eval_time": "20m",
                            "exp_samples": [{"labels": alerted(alert, labels), "value": 1}],
                        }
                    ]
                    if labels is not None
                    else []
                ),
            ],
        }
        for alert, given, labels in CASES
    ]
    test = tmp_path / "test.yml"
    test.write_text(json.dumps({"rule_files": [str(EXAMPLES / "rules.yml")], "tests": cases}))
    promtool("test", "rules", str(test))


def alerted(alert: str, labels: dict[str, str]) -> str:
    whole = {"__name__": "ALERTS", "alertname": alert, "alertstate": "firing", **labels}
    return "{" + ",".join(f'{key}="{value}"' for key, value in whole.items()) + "}"
