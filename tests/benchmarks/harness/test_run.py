"""Crews take orders, take turns, and leave nothing behind; steps that fail do not stop a run."""

from __future__ import annotations

import os

import pytest

from aiodist.base.environment.processor_load import Sample, Taken
from aiodist.cli.bench.measures import SIZES
from benchmarks.harness import run as running
from benchmarks.harness.cases import Case
from benchmarks.harness.crew import Crew, CrewError
from benchmarks.harness.link import AbsentError
from benchmarks.harness.peers import PASSES, SOCKETS, Found
from benchmarks.harness.results import Results
from benchmarks.harness.run import Run, Settings, Step
from benchmarks.harness.turns import measure, slowest
from benchmarks.speed.catalog import SUITES, steps
from benchmarks.speed.suites.beside import against_ideal
from benchmarks.speed.suites.startup import descriptors
from tests.levels import COSTLY


def make_run(**settings: object) -> Run:
    return Run(Found({}, []), Settings(**settings), Results())  # type: ignore[arg-type]


@pytest.mark.slow(COSTLY)
def test_two_limits_take_turns() -> None:
    run = make_run(turns=2, budget=0.0)
    try:
        measure(run, "tcp", Case("all_reduce", 1 << 16), 2, [PASSES, SOCKETS])
        measure(run, "other", Case("barrier"), 2, [PASSES])
        measure(run, "two", Case("all_reduce", 8), 2, [PASSES, SOCKETS], {"passes": Case("broadcast", 64)})
    finally:
        run.close_crews()
    assert [
        (record.suite, record.what, record.nbytes, record.peer, record.count)
        for record in run.results.records
    ] == [
        ("tcp", "all_reduce", 1 << 16, "passes", 2),
        ("tcp", "all_reduce", 1 << 16, "sockets", 2),
        ("two", "broadcast", 64, "passes", 2),
        ("two", "all_reduce", 8, "sockets", 2),
    ]
    assert run.results.notes == ["passes, barrier float32: there is no floor of barrier of float32"]


def test_the_slowest_rank_counts() -> None:
    turns = [[[1.0, 1.0], [2.0, 3.0]], [[9.0], [2.5]]]
    assert slowest(turns) == [2.0, 3.0, 2.5]


def test_many_ranks_have_fewer_sizes_unless_these_were_asked_for() -> None:
    def sizes(ranks: int, **settings: object) -> list[str]:
        run = make_run(only=("all_reduce",), ranks=(ranks,), **settings)
        return [step.label.split(",")[0].removeprefix("all_reduce float32 ") for step in steps(run)[:-1]]

    assert len(sizes(2)) == len(SIZES)
    assert sizes(8) == ["8 B", "1 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB"]
    assert sizes(8, sizes=(24, 1 << 30)) == ["24 B", "1 GiB"]


@pytest.mark.slow(COSTLY)
def test_many_ranks_are_forks_of_one_process() -> None:
    with Crew(PASSES, 3, forked=True) as crew:
        assert len(crew.do(descriptors)) == 3
        with pytest.raises(CrewError, match=r"passes: rank \d of 3 failed in 'dance'"):
            crew.call("dance")


@pytest.mark.slow(COSTLY)
def test_a_rank_that_fails_is_named_with_its_error() -> None:
    with Crew(PASSES, 2) as crew, pytest.raises(CrewError, match=r"passes: rank \d of 2 failed in 'dance'"):
        crew.call("dance")


def test_what_fails_is_noted_and_the_rest_goes_on() -> None:
    run = make_run()
    done: list[str] = []

    def absent() -> None:
        raise AbsentError("cannot")

    def broken() -> None:
        raise CrewError("is broken")

    run.carry_out([Step("a", "1", absent), Step("b", "2", broken), Step("c", "3", lambda: done.append("c"))])
    assert done == ["c"]
    assert run.results.notes == ["a 1: cannot", "b 2: is broken"]


def test_figures_that_came_while_others_took_the_processors_are_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run()
    me, clock = os.getpid(), [0.0, 0.0, 0.0]  # monotonic; seconds of this run's ranks, and of others

    def at_work(own: float, others: float) -> None:
        clock[:] = clock[0] + 10, clock[1] + own, clock[2] + others
        run.results.add("a", f"{own} {others}", "aiodist", [1.0])

    def taken_now() -> Sample:
        took = {me: Taken("python", 1.0, 1, clock[1]), 1: Taken("make", clock[2])}
        return Sample(clock[0], clock[1] + clock[2], 0.0, took)

    monkeypatch.setattr(running, "sample", taken_now)
    cores = len(os.sched_getaffinity(0))
    run.carry_out(
        [Step("a", "alone", lambda: at_work(9, 0)), Step("a", "beside", lambda: at_work(1, 9 * cores))]
    )
    alone, beside = run.results.records
    assert alone.doubt == ""
    assert "other processes took 90 % of the processors' time, most of it make" in beside.doubt
    assert "took 45 %" in run.results.doubt


def test_when_the_time_is_up_the_rest_is_skipped() -> None:
    run = make_run(minutes=-1)
    run.carry_out([Step("a", "1", lambda: pytest.fail("it ran"))])
    assert run.results.notes == ["out of time: a 1 was skipped"]


def test_sweeps_go_world_size_by_world_size() -> None:
    found = [step.ranks for step in steps(make_run())]
    swept = [ranks for ranks in found if ranks]
    assert swept == sorted(swept)
    assert set(swept) == {2, 4, 8}
    assert found == swept + [0] * (len(found) - len(swept))


@pytest.mark.parametrize("name", list(SUITES))
def test_each_suite_can_be_run_alone(name: str) -> None:
    wanted = steps(make_run(only=(name,)))
    assert {step.suite for step in wanted} - {"end"} <= {name}


def test_overlap_is_measured_against_what_the_cores_allow() -> None:
    rank = {"reduce": 1.0, "compute": 1.0, "both": 2.0, "cpu": 2.0}
    assert against_ideal([rank, rank], cores=2) == 1.0  # both cores were busy already
    assert against_ideal([rank, rank], cores=4) == 2.0  # there was room beside
