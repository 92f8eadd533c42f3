"""The goals: which figures they look at, and when they are met."""

from __future__ import annotations

import pytest

from benchmarks.bars import BARS, Compared, Limited, bars_table, evaluate
from benchmarks.results import Results

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


def test_other_sizes_ranks_and_suites_do_not_count() -> None:
    bar = Compared("t", ("all_reduce",), "gloo", 2.0, sizes=(MIB, MIB), ranks=4)
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


def test_a_run_of_nothing_meets_nothing_and_still_makes_a_table() -> None:
    outcomes = evaluate(Results())
    assert len(outcomes) == len(BARS)
    assert all(outcome.met is None for outcome in outcomes)
    assert bars_table(outcomes).count("not measured") == len(BARS)


def test_wishes_go_further_than_goals() -> None:
    for bar in BARS:
        if bar.wish is not None:
            assert (bar.wish > bar.goal) == bar.faster, bar.title
