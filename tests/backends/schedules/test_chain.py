from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.schedules import chain
from aiodist.base.types import Kind
from tests.backends.schedules.prover import prove


def check(size: int, root: int) -> None:
    sent = prove(Kind.broadcast, [chain.broadcast(rank, size, root) for rank in range(size)], root)
    assert sent.rounds == (chain.CHUNKS + size - 2 if size > 1 else 0)
    last = (root - 1) % size
    assert all(chunks == chain.CHUNKS for rank, chunks in enumerate(sent.sent) if rank != last)
    assert sent.sent[last] == 0


def test_all_roots_of_small_groups() -> None:
    for size in range(1, 12):
        for root in range(size):
            check(size, root)


@given(size=st.integers(12, 40), data=st.data())
@settings(max_examples=40)
def test_any_size_and_root(size: int, data: st.DataObject) -> None:
    check(size, data.draw(st.integers(0, size - 1)))


def test_both_neighbours_are_spoken_to_in_every_round_between() -> None:
    """So all links of the chain are busy at the same time."""
    inner = chain.broadcast(2, 5, 0)
    assert [len(steps) for steps in inner.rounds] == [0] + [1] + [2] * (chain.CHUNKS - 1) + [1] + [0]
