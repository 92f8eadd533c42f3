"""The block pool gives every block to one owner at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.transport.shm.blocks import BlockPool


@given(count=st.integers(1, 64), steps=st.lists(st.integers(0, (1 << 64) - 1), max_size=60))
def test_blocks_are_never_given_twice(count: int, steps: list[int]) -> None:
    pool = BlockPool(count)
    taken = 0
    for step in steps:
        if len(pool) and step % 3:
            block = pool.take()
            assert 0 <= block < count
            assert not taken >> block & 1
            taken |= 1 << block
        elif blocks := step & taken:
            pool.release(blocks)
            taken &= ~blocks
        assert len(pool) == count - taken.bit_count()


def test_the_last_freed_comes_first() -> None:
    pool = BlockPool(4)
    blocks = [pool.take() for _ in range(4)]
    assert sorted(blocks) == [0, 1, 2, 3]
    with pytest.raises(IndexError):
        pool.take()
    pool.release(1 << blocks[2])
    pool.release(1 << blocks[0])
    assert [pool.take(), pool.take()] == [blocks[0], blocks[2]]


@pytest.mark.parametrize("blocks", [0, 1 << 1, 1 << 5, 1 << 63, 0b11])
def test_a_peer_cannot_free_what_was_not_taken(blocks: int) -> None:
    pool = BlockPool(5)
    assert pool.take() == 0
    with pytest.raises(WireError):
        pool.release(blocks)
    assert len(pool) == 4


@pytest.mark.parametrize("count", [0, 65])
def test_counts(count: int) -> None:
    with pytest.raises(ValueError):
        BlockPool(count)
