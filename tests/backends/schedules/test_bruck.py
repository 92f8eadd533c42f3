from __future__ import annotations

import pytest

from aiodist.backends.schedules import bruck
from aiodist.base.types import Kind
from tests.backends.schedules.prover import prove
from tests.levels import few


@pytest.mark.parametrize("size", few(range(1, 65), [*range(1, 10), 13, 16], "proofs for every size"))
def test_all_are_right_and_as_short_as_they_say(size: int) -> None:
    levels = (size - 1).bit_length()
    gathered = prove(Kind.all_gather, [bruck.all_gather(rank, size) for rank in range(size)])
    scattered = prove(Kind.reduce_scatter, [bruck.reduce_scatter(rank, size) for rank in range(size)])
    reduced = prove(Kind.all_reduce, [bruck.all_reduce(rank, size) for rank in range(size)])
    assert gathered.rounds == scattered.rounds == levels and reduced.rounds == 2 * levels
    assert gathered.sent == scattered.sent == (size - 1,) * size
    assert reduced.sent == (2 * (size - 1),) * size
    assert scattered.depth <= max(1, levels) and reduced.depth == scattered.depth


def test_no_range_is_sent_while_it_is_written() -> None:
    for size in range(2, 65):
        steps = [step for steps in bruck.all_reduce(1, size).rounds for step in steps]
        assert not any(getattr(step, "copy", False) for step in steps)
