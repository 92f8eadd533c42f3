"""Shapes that come once: as many as are asked for, small, and none of them twice."""

from __future__ import annotations

from math import prod

from benchmarks.speed.suites.cold import MOST, shapes


def test_no_shape_comes_twice() -> None:
    turns = [shapes(turn * 200, 200) for turn in range(10)]
    everything = [shape for turn in turns for shape in turn]
    assert len(set(everything)) == 2000
    assert all(1 <= prod(shape) <= MOST for shape in everything)


def test_sizes_are_mixed_in_every_turn() -> None:
    for turn in range(5):
        sizes = [prod(shape) for shape in shapes(turn * 200, 200)]
        assert min(sizes) <= MOST // 4
        assert max(sizes) >= 3 * MOST // 4
