"""The goals: which figures they look at, and when they are met."""

from __future__ import annotations

import pytest

from benchmarks.harness.results import Results
from benchmarks.speed.bars import Compared, Floor, Limited, bars_table, evaluate
from benchmarks.speed.goals import BARS

MIB = 1 << 20


def measured(*lines: tuple[str, int, float], suite: str = "all_reduce", ranks: int = 2) -> Results:
    results = Results()
    for peer, nbytes, seconds in lines:
        results.add(suite, "all_reduce", peer, [seconds], ranks=ranks, nbytes=nbytes, dtype="float32")
    return results


@pytest.mark.parametrize(
    ("ours", "met", "wished"), [(1.0, True, True), (2.0, True, False), (4.0, False, False)]
)
def test_faster_means_theirs_over_ours(ours: float, met: bool, wished: bool) -> None:
    bar = Compared("t", ("all_reduce",), "openmpi", 2.0, 4.0)
    (outcome,) = evaluate(measured(("aiodist", MIB, ours), ("openmpi", MIB, 4.0)), [bar])
    assert outcome.value == pytest.approx(4 / ours)
    assert (outcome.met, outcome.wished) == (met, wished)


def test_not_faster_means_ours_over_theirs_at_most() -> None:
    bar = Compared("t", ("all_reduce",), "openmpi", 6.0, faster=False)
    (outcome,) = evaluate(measured(("aiodist", 8, 5.0), ("openmpi", 8, 1.0)), [bar])
    assert (outcome.value, outcome.met, outcome.wished) == (5.0, True, None)


def test_the_worst_size_counts_and_is_named() -> None:
    bar = Compared("t", ("all_reduce",), "gloo", 2.0)
    results = measured(("aiodist", MIB, 1.0), ("gloo", MIB, 9.0), ("aiodist", 8, 1.0), ("gloo", 8, 1.5))
    (outcome,) = evaluate(results, [bar])
    assert (outcome.value, outcome.where, outcome.met) == (1.5, "8 B", False)


def test_of_a_mean_all_sizes_count_alike() -> None:
    bar = Compared("t", ("all_reduce",), "gloo", 1.6, faster=False, mean=True)
    results = measured(("aiodist", MIB, 4.0), ("gloo", MIB, 1.0), ("aiodist", 8, 1.0), ("gloo", 8, 2.0))
    (outcome,) = evaluate(results, [bar])
    assert outcome.value == pytest.approx(2**0.5)
    assert outcome.met
    assert evaluate(Results(), [bar])[0].value is None


def test_other_sizes_ranks_and_suites_do_not_count() -> None:
    bar = Compared("t", ("all_reduce",), "gloo", 2.0, sizes=(MIB, MIB), ranks=(4,))
    for results in (
        measured(("aiodist", 8, 1.0), ("gloo", 8, 1.0), ranks=4),
        measured(("aiodist", MIB, 1.0), ("gloo", MIB, 1.0)),
        measured(("aiodist", MIB, 1.0), ("gloo", MIB, 1.0), suite="tcp", ranks=4),
        measured(("aiodist", MIB, 1.0), ranks=4),
    ):
        (outcome,) = evaluate(results, [bar])
        assert (outcome.value, outcome.met) == (None, None)


def test_a_limit_is_about_aiodist_alone() -> None:
    results = Results()
    results.add("memory", "above tensors", "aiodist", [3.0 * MIB], unit="B", ranks=4, nbytes=64 * MIB)
    results.add("memory", "above tensors", "gloo", [99.0 * MIB], unit="B", ranks=4, nbytes=64 * MIB)
    bar = Limited("t", "memory", ("above tensors",), 16 * MIB, unit="B")
    (outcome,) = evaluate(results, [bar])
    assert (outcome.value, outcome.met) == (3.0 * MIB, True)
    assert "3 MiB" in bars_table([outcome])


def test_a_limit_may_be_about_one_world_size_and_from_below() -> None:
    results = Results()
    for ranks, count in ((4, 4.0), (256, 255.0)):
        results.add("init", "computed", "aiodist", [count], unit="", ranks=ranks)
    few, many = (
        Limited("t", "init", ("computed",), ranks, unit="", faster=True, ranks=(ranks,)) for ranks in (4, 256)
    )
    assert [outcome.met for outcome in evaluate(results, [few, many])] == [True, False]
    assert "255" in bars_table(evaluate(results, [many]))


FLOOR = Floor("passes", 1.5)


@pytest.mark.parametrize(
    ("ours", "floor", "met"), [(1.0, 0.1, True), (4.0, 3.0, True), (4.0, 2.0, False), (4.0, None, False)]
)
def test_the_easier_of_ratio_and_floor_counts(ours: float, floor: float | None, met: bool) -> None:
    bar = Compared("t", ("all_reduce",), "openmpi", 2.0, 8.0, floor=FLOOR)
    lines = [("aiodist", MIB, ours), ("openmpi", MIB, 4.0)]
    (outcome,) = evaluate(measured(*lines, *[("passes", MIB, floor or 0.0)] * bool(floor)), [bar])
    assert outcome.met is met
    assert outcome.wished is False  # a floor is no excuse for that
    assert "≥ 2× [8×], or ≤ 1.5× passes" in bars_table([outcome])


def test_the_worst_size_is_where_the_easier_is_furthest_off() -> None:
    bar = Compared("t", ("all_reduce",), "openmpi", 2.0, floor=FLOOR)
    at_its_floor = (("aiodist", 8, 10.0), ("openmpi", 8, 1.0), ("passes", 8, 9.0))
    a_little_slow = (("aiodist", MIB, 1.0), ("openmpi", MIB, 1.8), ("passes", MIB, 0.5))
    (outcome,) = evaluate(measured(*at_its_floor, *a_little_slow), [bar])
    assert (outcome.value, outcome.where, outcome.met) == (1.8, "1 MiB", False)
    assert "1.8×, 2×" in bars_table([outcome])


def test_theirs_may_be_the_best_of_their_samples() -> None:
    results = measured(("aiodist", 8, 3.0))
    results.add("all_reduce", "all_reduce", "gloo", [2.0, 4.0, 9.0], ranks=2, nbytes=8, dtype="float32")
    median, best = (
        Compared("t", ("all_reduce",), "gloo", 1.0, faster=False, best=best) for best in (False, True)
    )
    assert [outcome.value for outcome in evaluate(results, [median, best])] == [0.75, 1.5]


def test_several_world_sizes_are_named() -> None:
    bar = Compared("t", ("all_reduce",), "gloo", 2.0, ranks=(2, 4))
    results = measured(("aiodist", 8, 1.0), ("gloo", 8, 3.0))
    results.records += measured(("aiodist", 8, 1.0), ("gloo", 8, 2.5), ranks=4).records
    (outcome,) = evaluate(results, [bar])
    assert (outcome.value, outcome.where) == (2.5, "8 B 4 ranks")


def test_a_run_of_nothing_meets_nothing_and_still_makes_a_table() -> None:
    outcomes = evaluate(Results(), BARS)
    assert len(outcomes) == len(BARS)
    assert all(outcome.met is None for outcome in outcomes)
    assert bars_table(outcomes).count("not measured") == len(BARS)


def test_wishes_go_further_than_goals() -> None:
    for bar in BARS:
        if bar.wish is not None:
            assert (bar.wish > bar.goal) == bar.faster, bar.title
