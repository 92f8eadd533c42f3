"""Predictions beside measurements: what is predicted for namespaces, and what the table says of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from aiodist.cli.bench.cases import Case
from aiodist.sim.constants import Constants
from aiodist.sim.network import Link, Network
from benchmarks import sim
from benchmarks.ranks.moves import phases
from benchmarks.sim import RATES, Line

_MACHINE = {"cpu": "a processor", "cores": 2, "date": "today", "load_before": 0.5, "load_after": 1.5}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("what", sim.WHAT)
def test_no_prediction_is_faster_than_the_cables(rate: str, what: str) -> None:
    nbytes, hosts = 8 << 20, 4
    seconds, _ = sim.predict(sim.network(rate, hosts, 2), Constants(), Case(what, nbytes))
    crosses = nbytes if what == "broadcast" else nbytes * (hosts - 1) / hosts
    assert seconds > (crosses - (256 << 10)) / RATES[rate]


def test_the_namespaces_are_hosts_that_share_the_cores_here() -> None:
    found = sim.network("1gbit", 4, 2)
    assert found.host_of == (0, 0, 1, 1, 2, 2, 3, 3)
    assert found.cores >= 1
    assert {(link.bandwidth, link.burst) for link in found.links} == {(125e6, 256 << 10)}


def test_the_table_counts_the_lines_that_are_right() -> None:
    lines = [
        Line("1gbit", 4, 2, "all_reduce", 1 << 20, 0.010, 0.008, predicted, "ring")
        for predicted in (0.0081, 0.0079, 0.0119, 0.0121)
    ]
    text = sim.report(lines, dict(_MACHINE))
    assert [f"| {word} % |" in text for word in ("-19", "-21", "+19", "+21")] == [True] * 4
    assert "2 of 4 lines are within 20 % of the median, 2 of the least" in text


def test_what_was_measured_is_predicted_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier, later = tmp_path / "earlier.json", tmp_path / "later.json"
    line = Line("100mbit", 2, 1, "all_reduce", 1 << 20, 0.07, 0.065, 123.0, "something else")
    earlier.write_text(json.dumps({"machine": _MACHINE, "lines": [asdict(line)]}))
    assert sim.main(["--again", str(earlier), "--json", str(later)]) == 0
    (found,) = json.loads(later.read_text())["lines"]
    assert found["measured"] == line.measured
    assert 0.01 < found["predicted"] < 1
    assert "1 of 1 lines" in capsys.readouterr().out


def test_without_namespaces_a_reason_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert sim.main([]) == 1
    assert "no network namespaces here" in capsys.readouterr().err


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize(
    "what", ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"]
)
def test_ranks_of_a_host_move_what_the_engine_moves(what: str, width: int) -> None:
    nbytes = 4 << 20
    case = Case(what, nbytes)
    moved = max(
        sum(move.into.end - move.into.begin for phase in phases(case, width, rank) for move in phase)
        for rank in range(width)
    )
    constants = Constants(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)  # a second a byte: seconds count bytes
    seconds, how = sim.predict(Network((0,) * width, (Link(1e9),)), constants, case)
    assert how == "memory"
    assert seconds == pytest.approx(moved * 4)
