"""Who is named as the one for whom the others wait: only who holds them up, often, and for long."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.observe import JobView, RankView
from aiodist.observe.recorder.reading import Group
from aiodist.observe.straggler import ENOUGH, find_straggler
from tests.levels import COSTLY
from tests.observe.made import LINE, a_job, a_rank, a_record


def steps(rank: int, late: float, op: str = "all_reduce", count: int = 50, **more: Any) -> RankView:
    """A rank that comes so much later to a collective in each second."""
    last = [
        a_record(op, number, 10.0 + number + late, ended=12.0 + number, **more) for number in range(count)
    ]
    return a_rank(rank, last, now=100.0)


def job(op: str = "all_reduce", late: float = 0.2, who: int = 2, **more: Any) -> JobView:
    return a_job(*(steps(rank, late * (rank == who), op, **more) for rank in range(4)))


def test_the_one_that_comes_last_is_named_with_what_is_lost_and_where() -> None:
    found = find_straggler(job())
    assert found is not None
    assert (found.rank, found.last, found.seen, found.line) == (2, 50, 50, LINE)
    assert found.lost == pytest.approx(50 * 3 * 0.2)
    assert found.share == pytest.approx(0.2 * 50 / 49)


@pytest.mark.parametrize(
    ("op", "root", "who", "lost"),
    [
        ("broadcast", 2, 2, 30.0),  # all wait for its root,
        ("broadcast", 0, 2, 0.0),  # and for nobody else
        ("scatter", 0, 2, 0.0),
        ("gather", 0, 2, 10.0),  # the root alone waits
        ("reduce", 2, 2, 0.0),
        ("barrier", -1, 2, 30.0),
    ],
)
def test_only_who_is_held_up_loses_time(op: str, root: int, who: int, lost: float) -> None:
    found = find_straggler(job(op, who=who, root=root))
    assert (0.0 if found is None else found.lost) == pytest.approx(lost)


def test_a_group_with_a_member_that_is_not_seen_says_nothing() -> None:
    assert find_straggler(a_job(*(steps(rank, 0.2 * (rank == 2)) for rank in range(3)))) is None


def test_a_clock_that_goes_faster_is_no_rank_that_is_late() -> None:
    fast = a_rank(2, [a_record(number=n, issued=(10.0 + n) * 1.01) for n in range(50)], now=100.0)
    ranks = [
        steps(0, 0.0),
        steps(1, 0.0),
        fast.placed(100.0 / 1.01 - 100.0, 0.0, 1 / 1.01 - 1),
        steps(3, 0.0),
    ]
    assert find_straggler(a_job(*ranks)) is None


@pytest.mark.slow(COSTLY)
@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.integers(0, 60), st.integers(1, 8))
def test_shares_are_shares_and_who_is_named_was_seen(random: Random, count: int, size: int) -> None:
    groups = [Group("world", 0, range(size)), Group("some", 0, tuple(range(0, size, 2)))]
    ranks = []
    for rank in range(size):
        last = [
            a_record(
                random.choice(["all_reduce", "gather"]), n, random.uniform(0.1, 99.0), group=group, root=0
            )
            for group in groups
            for n in range(count)
            if random.random() < 0.95 and rank in group.ranks
        ]
        ranks.append(a_rank(rank, last, now=100.0).placed(random.uniform(-9, 9), random.uniform(0, 1)))
    found = find_straggler(a_job(*ranks))
    if found is not None:
        assert 0.0 <= found.share <= 1.0
        assert found.lost >= 0.0
        assert found.seen >= ENOUGH
        assert 0 < found.last <= found.seen
        assert found.rank in range(size)
