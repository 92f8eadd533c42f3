"""All ranks on one clock: along the best paths of pairs, with the sum of their errors."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.environment.clock import clock_id
from aiodist.observe import RankView
from aiodist.observe.clocks import UNKNOWN, ClockPair, Shift, align, clock_of, place
from aiodist.observe.recorder.reading import Clock
from tests.observe.made import a_job, a_rank


def test_the_best_path_counts() -> None:
    pairs = [
        ClockPair("a", "b", Shift(0.0, 10.0, 0.0, 5.0)),
        ClockPair("a", "c", Shift(0.0, 1.0, 0.0, 0.5)),
        ClockPair("b", "c", Shift(0.0, -9.5, 0.0, 0.25)),
        ClockPair("x", "y", Shift()),
    ]
    found = align("a", pairs)
    assert set(found) == {"a", "b", "c"}
    assert (found["b"].seconds, found["b"].error) == (-10.5, 0.75)
    assert (found["c"].seconds, found["c"].error) == (-1.0, 0.5)


NUMBERS = st.floats(-1e4, 1e4)
SHIFTS = st.builds(Shift, NUMBERS, NUMBERS, st.floats(-2e-4, 2e-4), st.floats(0.0, 1.0))


@given(SHIFTS, SHIFTS, NUMBERS)
def test_shifts_follow_each_other_and_go_back(one: Shift, other: Shift, time: float) -> None:
    assert abs(one.then(other)(time) - other(one(time))) < 1e-6
    assert abs(one.back()(one(time)) - time) < 1e-6
    assert one.then(other).error == one.error + other.error


def measured(seed: int, count: int) -> tuple[list[RankView], list[float], list[float]]:
    """Ranks on clocks that are apart and drift, each of which has measured some others; and the clocks."""
    rng = random.Random(seed)
    ahead = [rng.uniform(-1e4, 1e4) for _ in range(count)]
    drift = [rng.uniform(-1e-4, 1e-4) for _ in range(count)]
    ranks = []
    for one in range(count):
        here = 20.0 + ahead[one] + drift[one] * 20.0
        clocks = []
        for other in {(one + 1) % count, rng.randrange(count)} - {one}:
            error = rng.uniform(1e-5, 1e-2)
            truth = ahead[other] - ahead[one] + (drift[other] - drift[one]) * 20.0
            said = truth + rng.uniform(-0.9, 0.9) * error
            grows = (drift[other] - drift[one]) / (1 + drift[one])
            clocks.append(Clock(other, said, grows, error, here))
        view = a_rank(one, clock=str(one), size=count)
        ranks.append(replace(view, now=here, recording=replace(view.recording, clocks=tuple(clocks))))
    return ranks, ahead, drift


@given(st.integers(0, 2**32), st.integers(2, 6))
def test_the_truth_lies_within_the_error_of_the_path(seed: int, count: int) -> None:
    ranks, ahead, drift = measured(seed, count)
    placed = place(a_job(*ranks)).ranks
    assert (placed[0].shift, placed[0].error, placed[0].drift) == (0.0, 0.0, 0.0)
    for rank in placed:
        for time in (15.0, 20.0):
            truth = time + ahead[0] + drift[0] * time
            mine = time + ahead[rank.rank] + drift[rank.rank] * time
            assert abs(rank.time(mine) - truth) <= rank.error + 1e-5


def test_ranks_that_read_the_same_clock_need_no_shift() -> None:
    far = Clock(1, 99.0, 0.0, 0.5, 20.0)
    first = a_rank(0)
    job = a_job(replace(first, recording=replace(first.recording, clocks=(far,))), a_rank(1, host="b"))
    assert [(rank.shift, rank.error) for rank in place(job).ranks] == [(0.0, 0.0)] * 2


def test_where_nobody_has_measured_the_time_of_day_counts() -> None:
    one, other = a_rank(0, clock="one"), a_rank(1, clock="two")
    other = replace(other, recording=replace(other.recording, offset=1e9 + 50.0))
    placed = place(a_job(one, other)).ranks[1]
    assert (placed.shift, placed.error) == (50.0, UNKNOWN)


def test_a_clock_that_nobody_tells_is_a_processs_own() -> None:
    told = a_rank(0)
    silent = [
        replace(told, recording=replace(told.recording, about={"clock": told_clock}))
        for told_clock in (None, 5, ["x"])
    ]
    assert {clock_of(rank) for rank in silent} == {told.identity}
    assert clock_of(told) == "one"


def test_containers_may_have_the_same_name_and_process_id() -> None:
    one, other = (a_rank(rank, began=1.0 + rank, host="a-pod") for rank in range(2))
    silent = [
        replace(one, recording=replace(one.recording, about={}, pid=1, offset=1e9 + 50.0 * one.rank))
        for one in (one, other)
    ]
    placed = place(a_job(*silent)).ranks
    assert [(rank.shift, rank.error) for rank in placed] == [(0.0, 0.0), (50.0, UNKNOWN)]


def test_the_clock_of_this_process() -> None:
    assert clock_id() == clock_id()
    assert "\n" not in clock_id()
    assert len(clock_id()) > 5


def test_where_the_system_tells_no_clock_each_process_has_its_own() -> None:
    command = "from pathlib import Path; Path.read_text = lambda self: open('')"  # there is no such file
    command += (
        "; from aiodist.base.environment.clock import clock_id; print(clock_id(), clock_id() == clock_id())"
    )
    told = [subprocess.check_output([sys.executable, "-c", command], text=True).split() for _ in range(2)]
    assert told[0][2] != told[1][2] and told[0][3] == told[1][3] == "True"
