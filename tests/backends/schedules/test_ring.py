from __future__ import annotations

import pytest

from aiodist.backends.schedules import ring
from aiodist.base.types import Kind
from tests.backends.schedules.prover import prove
from tests.levels import few


@pytest.mark.parametrize("size", few(range(1, 65), [*range(1, 10), 13, 16], "proofs for every size"))
def test_ring_is_right_and_as_long_as_it_says(size: int) -> None:
    reduced = prove(Kind.all_reduce, [ring.all_reduce(rank, size) for rank in range(size)])
    assert reduced.rounds == 2 * (size - 1)
    assert reduced.sent == (2 * (size - 1),) * size
    assert reduced.depth == size - 1

    gathered = prove(Kind.all_gather, [ring.all_gather(rank, size) for rank in range(size)])
    scattered = prove(Kind.reduce_scatter, [ring.reduce_scatter(rank, size) for rank in range(size)])
    assert gathered.rounds == scattered.rounds == size - 1
    assert gathered.sent == scattered.sent == (size - 1,) * size


def test_a_rank_speaks_to_its_neighbours_only() -> None:
    steps = [step for steps in ring.all_reduce(2, 7).rounds for step in steps]
    assert {step.peer for step in steps} == {1, 3}
