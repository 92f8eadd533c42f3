from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.schedules import binomial
from aiodist.schedules.prover import prove
from aiodist.types import Kind


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


def test_all_roots_of_small_groups() -> None:
    for size in range(1, 17):
        for root in range(size):
            check(size, root)


@given(size=st.integers(17, 64), data=st.data())
@settings(max_examples=100)
def test_any_root_of_larger_groups(size: int, data: st.DataObject) -> None:
    check(size, data.draw(st.integers(0, size - 1)))


def test_every_size() -> None:
    for size in range(17, 65):
        check(size, 0)
        check(size, size - 1)
