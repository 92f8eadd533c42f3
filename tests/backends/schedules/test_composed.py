from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.schedules import composed
from aiodist.backends.schedules.steps import Send
from aiodist.base.types import Kind
from tests.backends.schedules.prover import prove
from tests.levels import COSTLY


def check(size: int, root: int) -> None:
    levels = (size - 1).bit_length()
    cast = [composed.broadcast(rank, size, root) for rank in range(size)]
    broadcast = prove(Kind.broadcast, cast, root)
    assert broadcast.rounds == levels + size - 1
    assert broadcast.sent[root] == max(broadcast.sent) == 2 * (size - 1)
    received = [step.stop - step.start for one in cast for steps in one.rounds for step in steps
                if not isinstance(step, Send)]  # fmt: skip
    assert sum(broadcast.sent) == sum(received)

    ring = prove(Kind.reduce, [composed.ring_reduce(rank, size, root) for rank in range(size)], root)
    assert ring.rounds == (size if size > 1 else 0)
    assert all(sent == size - (rank == root) for rank, sent in enumerate(ring.sent)) or size == 1

    if size & (size - 1) == 0:
        build = composed.halving_reduce
        halving = prove(Kind.reduce, [build(rank, size, root) for rank in range(size)], root)
        assert halving.rounds == 2 * levels and halving.depth <= levels
        assert halving.sent[root] == size - 1 and max(halving.sent) <= size - 1 + size // 2


def test_all_roots_of_small_groups() -> None:
    for size in range(1, 10):
        for root in range(size):
            check(size, root)


@pytest.mark.slow("proofs for every size")
def test_every_size() -> None:
    for size in range(10, 65):
        check(size, 0)


@pytest.mark.slow(COSTLY)
@given(size=st.integers(10, 64), data=st.data())
@settings(max_examples=8, deadline=None)
def test_any_root_of_larger_groups(size: int, data: st.DataObject) -> None:
    check(size, data.draw(st.integers(0, size - 1)))


def test_the_ring_of_a_broadcast_brings_nothing_twice() -> None:
    for size in range(2, 20):
        for rank in range(size):
            steps = [step for steps in composed.broadcast(rank, size, 0).rounds for step in steps]
            got = [c for step in steps if not isinstance(step, Send) for c in range(step.start, step.stop)]
            assert sorted(got) == (list(range(size)) if rank else [])
