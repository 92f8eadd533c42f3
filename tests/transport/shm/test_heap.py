"""The heap gives out pieces that never overlap, and takes them back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.transport.shm.heap import ALIGN, Heap


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5000), st.sampled_from([64, 128, 4096])), max_size=60)
)
def test_pieces_never_overlap_and_come_back(steps: list[tuple[bool, int, int]]) -> None:
    heap = Heap(100, 100_000)
    pieces: dict[int, int] = {}
    for frees, nbytes, align in steps:
        if frees and pieces:
            at = sorted(pieces)[nbytes % len(pieces)]
            del pieces[at]
            heap.free(at)
            continue
        try:
            at = heap.take(nbytes, align)
        except MemoryError:
            assert heap.taken() + nbytes + align > 100_000 - 128 - len(pieces) * align
            continue
        assert at % align == 0
        assert at >= 100
        assert at + nbytes <= 100_000
        for other, size in pieces.items():
            assert at + max(nbytes, 1) <= other or other + max(size, 1) <= at
        pieces[at] = nbytes
    for at in pieces:
        heap.free(at)
    assert heap.taken() == 0
    whole = heap.stop - heap.start
    assert heap.take(whole - whole % ALIGN) == heap.start  # all of it is one piece again


def test_what_was_freed_first_is_reused_first() -> None:
    heap = Heap(0, 1 << 20)
    first, second = heap.take(1000), heap.take(1000)
    heap.free(first)
    assert heap.take(500) == first
    assert second not in (first, first + 512)


def test_what_ends_somewhere() -> None:
    heap = Heap(0, 1 << 20)
    first = heap.take(4096, stop=8192)
    assert heap.take(4096, stop=8192) == 4096
    with pytest.raises(MemoryError, match="no 64 bytes left of 8192"):
        heap.take(64, stop=8192)
    behind = heap.take(1 << 19)
    assert behind >= 8192
    heap.free(first)
    assert heap.take(64, stop=8192) == first


def test_nothing_left() -> None:
    heap = Heap(0, 1024)
    heap.take(1000)
    with pytest.raises(MemoryError, match="no 64 bytes left"):
        heap.take(64)


def test_pieces_of_the_same_alignment_leave_no_gaps() -> None:
    """Or each search would go through all of them."""
    heap = Heap(8192 + 64, 1 << 30)
    taken = [heap.take(4097 + 100 * number, 4096) for number in range(300)]
    assert len(heap._free) == 2  # before the first, and behind the last
    assert all(at % 4096 == 0 for at in taken)
