"""Plans of deaths: what every one of them has, and that a seed gives one plan."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.training.digits.plan import LONGEST, plan


@given(seed=st.integers(), steps=st.integers(200, 5000), kills=st.integers(1, 20))
def test_deaths_come_in_order_and_early_enough(seed: int, steps: int, kills: int) -> None:
    found = plan(seed, steps, 4, kills)
    assert found == plan(seed, steps, 4, kills)
    assert kills <= sum(len(one.kills) for one in found) <= kills + 1
    assert all(one.step > 0 and one.step + one.ahead < steps * 0.9 for one in found)
    assert all(a.step < b.step for a, b in pairwise(found))
    for one in found:
        slots = [slot for slot, _ in one.kills]
        assert len(set(slots)) == len(slots) <= 2 and set(slots) <= set(range(4))
        assert all(0 <= seconds <= LONGEST for _, seconds in one.kills)


@given(seed=st.integers())
def test_all_ranks_die_about_equally_often(seed: int) -> None:
    often = Counter(slot for one in plan(seed, 800, 4, 12) for slot, _ in one.kills)
    assert set(often) == {0, 1, 2, 3}
    assert max(often.values()) - min(often.values()) <= 1


def test_seeds_differ_and_some_die_together() -> None:
    plans = [plan(seed, 800, 4, 12) for seed in range(20)]
    assert len({str(one) for one in plans}) == 20
    assert {len(one.kills) for found in plans for one in found} == {1, 2}
