"""The overlay: symmetric, of logarithmic degree, and every rank is near every other."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.group.control.overlay import FULL_MESH, neighbours, next_hop

SIZES = st.integers(1, 300)


def walk(
    start: int, target: int, size: int, dead: frozenset[int] = frozenset(), limit: int = 64
) -> int | None:
    """Hops from start to target, None where the way ends."""
    here = start
    for hops in range(limit):
        if here == target:
            return hops
        step = next_hop(here, target, size, dead)
        if step is None:
            return None
        assert step not in dead
        assert step in neighbours(here, size)
        here = step
    return None


@given(size=SIZES, data=st.data())
def test_any_rank_reaches_any_other_in_few_hops(size: int, data: st.DataObject) -> None:
    start, target = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    hops = walk(start, target, size)
    assert hops is not None
    assert hops <= math.log2(size) + 1


@pytest.mark.parametrize("size", [*range(1, 40), 64, 65, 127, 128, 129])
def test_links_are_symmetric_and_few(size: int) -> None:
    for rank in range(size):
        mine = neighbours(rank, size)
        assert rank not in mine
        assert list(mine) == sorted(set(mine))
        assert all(0 <= other < size for other in mine)
        assert all(rank in neighbours(other, size) for other in mine)
        assert len(mine) <= max(FULL_MESH - 1, 2 * math.ceil(math.log2(size)))
        if size <= FULL_MESH:
            assert len(mine) == size - 1


@given(size=st.integers(2, 300), data=st.data())
def test_one_dead_rank_cuts_nobody_off(size: int, data: st.DataObject) -> None:
    start, target, dead = data.draw(
        st.lists(st.integers(0, size - 1), min_size=3, max_size=3, unique=True)
        if size > 2
        else st.just([0, 1, 5])
    )
    assert walk(start, target, size, frozenset({dead})) is not None


@settings(max_examples=50, deadline=None)
@given(size=st.integers(16, 200), seed=st.integers(0, 2**32))
def test_the_living_stay_connected_when_a_quarter_dies_at_random(size: int, seed: int) -> None:
    # A flood reaches whoever is connected, whatever the routes are.
    rng = random.Random(seed)
    dead = set(rng.sample(range(size), size // 4))
    living = [rank for rank in range(size) if rank not in dead]
    seen, edge = {living[0]}, [living[0]]
    while edge:
        for other in neighbours(edge.pop(), size):
            if other not in dead and other not in seen:
                seen.add(other)
                edge.append(other)
    assert seen == set(living)


def test_nobody_left_to_ask() -> None:
    assert next_hop(0, 1, 3, {1, 2}) is None
    assert next_hop(0, 0, 1) is None
    assert next_hop(0, 2, 3, {1}) == 2
