"""Schedules laid over a buffer: which receives are posted ahead."""

from __future__ import annotations

import numpy as np
import pytest

from aiodist.backends.buffers import bounds_of
from aiodist.backends.host.layout import IN_STEP, Layout
from aiodist.backends.schedules.pairwise import all_to_all
from aiodist.backends.schedules.ring import all_gather
from aiodist.backends.schedules.steps import Schedule

SIZE = 8


def posted(schedule: Schedule, nbytes: int) -> list[list[int]]:
    """The rounds whose receives are posted in each round, where each chunk has so many bytes."""
    bounds = bounds_of(SIZE * nbytes, None, SIZE)
    layout = Layout(schedule, bounds, bounds, np.dtype(np.uint8), None, 0)
    return [[one.number for one in receives] for _, receives in layout.rounds]


@pytest.mark.parametrize("rank", [0, 5])
def test_large_parts_of_an_all_to_all_are_asked_for_in_their_round(rank: int) -> None:
    assert posted(all_to_all(rank, SIZE), IN_STEP) == [[number] for number in range(SIZE - 1)]
    assert posted(all_to_all(rank, SIZE), IN_STEP - 1) == [[0, 1, 2], [3], [4], [5], [6], [], []]


def test_a_ring_asks_ahead_whatever_the_size_since_all_comes_from_one_peer() -> None:
    assert posted(all_gather(0, SIZE), IN_STEP)[0] == [0, 1, 2]
