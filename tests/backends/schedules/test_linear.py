from __future__ import annotations

import pytest

from aiodist.backends.schedules import linear
from aiodist.base.types import Kind
from tests.backends.schedules.prover import prove
from tests.levels import COSTLY


@pytest.mark.slow(COSTLY)
def test_gather_and_scatter_are_right_and_as_long_as_they_say() -> None:
    for size in range(1, 65):
        for root in range(size) if size <= 16 else (0, 1, size - 1):
            gathered = prove(Kind.gather, [linear.gather(rank, size, root) for rank in range(size)], root)
            scattered = prove(Kind.scatter, [linear.scatter(rank, size, root) for rank in range(size)], root)
            assert gathered.rounds == scattered.rounds == (size > 1)
            assert gathered.sent == tuple(int(rank != root) for rank in range(size))
            assert scattered.sent == tuple((size - 1) * (rank == root) for rank in range(size))


def test_a_rank_but_the_root_touches_its_own_chunk_only() -> None:
    for build in (linear.gather, linear.scatter):
        for rank in range(1, 5):
            steps = [step for steps in build(rank, 5, 0).rounds for step in steps]
            assert [(step.start, step.stop) for step in steps] == [(rank, rank + 1)]


def test_ranks_begin_with_different_peers() -> None:
    assert [linear.others(rank, 4)[0] for rank in range(4)] == [1, 2, 3, 0]
