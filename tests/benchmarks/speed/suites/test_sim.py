"""Predictions beside measurements: what is predicted for namespaces, and what the table says of it."""

from __future__ import annotations

import pytest

from aiodist.sim.constants import Constants
from aiodist.sim.network import LinkSpec, Network
from benchmarks.harness.cases import Case
from benchmarks.harness.peers import Found
from benchmarks.harness.results import Results
from benchmarks.harness.run import Run, Settings
from benchmarks.ranks.moves import phases
from benchmarks.speed.suites import sim


@pytest.mark.parametrize("rate", sim.RATES)
@pytest.mark.parametrize("what", sim.WHAT)
def test_no_prediction_is_faster_than_the_cables(rate: str, what: str) -> None:
    nbytes, hosts = 8 << 20, 4
    seconds = sim.predict(sim.network(rate, hosts, 2), Constants(), Case(what, nbytes))
    crosses = nbytes if what == "broadcast" else nbytes * (hosts - 1) / hosts
    assert seconds > (crosses - (256 << 10)) / sim.RATES[rate][1]


def test_the_namespaces_are_hosts_that_share_the_cores_here() -> None:
    found = sim.network("1 Gbit/s", 4, 2)
    assert found.host_of == (0, 0, 1, 1, 2, 2, 3, 3)
    assert found.cores >= 1
    assert {(link.bandwidth, link.burst) for link in found.links} == {(125e6, 256 << 10)}


def test_the_table_counts_the_lines_that_are_right() -> None:
    results = Results()
    for nbytes, predicted in enumerate((0.0081, 0.0079, 0.0119, 0.0121), 1):
        what = "1 Gbit/s | 4 × 2 | all_reduce"
        results.add("sim", what, "measured", [0.010, 0.008, 0.012], ranks=8, nbytes=nbytes)
        results.add("sim", what, "predicted", [predicted], ranks=8, nbytes=nbytes)
    text = sim.errors_table(results.records)
    assert [f"{word} % |" in text for word in ("-19", "-21", "+19", "+21")] == [True] * 4
    assert "| 1 Gbit/s |         4 × 2 | all_reduce |" in text
    assert "2 of 4 lines are within 20 % of the median, 2 of the least" in text


def test_without_namespaces_a_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    run = Run(Found({}, []), Settings(quick=True), Results())
    run.carry_out(sim.sim(run))
    assert not run.results.records
    (note,) = run.results.notes
    assert "no network namespaces here" in note


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
    seconds = sim.predict(Network((0,) * width, (LinkSpec(1e9),)), constants, case)
    assert seconds == pytest.approx(moved * 4)
