from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.schedules import binomial
from aiodist.base.types import Kind
from tests.backends.schedules.prover import prove
from tests.levels import COSTLY


def check(size: int, root: int) -> None:
    depth = (size - 1).bit_length()
    sent = prove(Kind.broadcast, [binomial.broadcast(rank, size, root) for rank in range(size)], root)
    assert sent.rounds == depth
    assert sum(sent.sent) == size - 1 and sent.sent[root] == depth

    reduce = [binomial.reduce(rank, size, root) for rank in range(size)]
    reduced = prove(Kind.reduce, reduce, root)
    assert reduced.rounds == depth and reduced.depth <= depth
    assert all(chunks == (rank != root) for rank, chunks in enumerate(reduced.sent))
    assert sum(not one.writes for one in reduce) >= size // 2  # leaves need no working copy

    gathered = prove(Kind.gather, [binomial.gather(rank, size, root) for rank in range(size)], root)
    scattered = prove(Kind.scatter, [binomial.scatter(rank, size, root) for rank in range(size)], root)
    assert gathered.rounds == scattered.rounds == depth
    subtrees = [binomial.subtree((rank - root) % size, size) for rank in range(size)]
    assert all(gathered.sent[rank] == subtrees[rank] for rank in range(size) if rank != root)
    assert max(gathered.sent) <= max(1, size // 2) and gathered.sent[root] == 0
    assert scattered.sent[root] == size - 1
    assert sum(scattered.sent) == sum(gathered.sent)


def test_all_roots_of_small_groups() -> None:
    for size in range(1, 17):
        for root in range(size):
            check(size, root)


@pytest.mark.slow(COSTLY)
@given(size=st.integers(17, 64), data=st.data())
@settings(max_examples=100)
def test_any_root_of_larger_groups(size: int, data: st.DataObject) -> None:
    check(size, data.draw(st.integers(0, size - 1)))


@pytest.mark.slow(COSTLY)
def test_every_size() -> None:
    for size in range(17, 65):
        check(size, 0)
        check(size, size - 1)


def test_ranges_wrap_only_where_the_root_is_not_0() -> None:
    def wraps(root: int) -> bool:
        schedules = [binomial.gather(rank, 7, root) for rank in range(7)]
        return any(step.stop > 7 for one in schedules for steps in one.rounds for step in steps)

    assert not wraps(0)
    assert [root for root in range(7) if wraps(root)] == [1, 2, 4]


def test_a_rank_touches_its_subtree_only() -> None:
    for size in range(1, 20):
        for rank in range(1, size):
            own = set(range(rank, rank + binomial.subtree(rank, size)))
            for build in (binomial.gather, binomial.scatter):
                steps = [step for steps in build(rank, size, 0).rounds for step in steps]
                assert set().union(*(range(step.start, step.stop) for step in steps)) == own
