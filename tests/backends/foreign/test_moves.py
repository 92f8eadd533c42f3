"""Moves of all ranks, carried out together, give what the collective means."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.foreign.moves import Move, all_gathered, exchanged, gathered, parts, scattered, worth
from aiodist.tensors.device import geometry

SIZES = st.integers(1, 5)
COUNTS = st.integers(0, 4)


def carry(moves: Sequence[Sequence[Move]]) -> None:
    """Do what an engine does: between two ranks, the n-th send goes to the n-th receive."""
    sent: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
    for rank, mine in enumerate(moves):
        for sends, peer, array in mine:
            assert array.size, "empty messages are none"
            assert array.ndim == 1 and array.flags.c_contiguous
            if sends:
                sent[rank, peer].append(array.copy())
    for rank, mine in enumerate(moves):
        for sends, peer, array in mine:
            if not sends:
                array[:] = sent[peer, rank].popleft()  # of another size: raises
    assert not any(sent.values()), "a send without its receive"


def values(rank: int, count: int) -> Any:
    """Distinct ones for each rank and element."""
    return np.arange(count) + 100 * (rank + 1)


@given(SIZES, COUNTS, st.data())
def test_gather(size: int, count: int, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, size - 1))
    target = np.zeros(size * count, np.int64)
    carry(
        [gathered(r, size, root, values(r, count), target if r == root else None) for r in range(size)],
    )
    assert np.array_equal(target, np.concatenate([values(r, count) for r in range(size)]))


@given(SIZES, COUNTS, st.data())
def test_scatter(size: int, count: int, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, size - 1))
    dealt, targets = values(root, size * count), [np.zeros(count, np.int64) for _ in range(size)]
    carry([scattered(r, size, root, dealt if r == root else None, targets[r]) for r in range(size)])
    assert np.array_equal(np.concatenate(targets), dealt)


@given(SIZES, COUNTS)
def test_all_gather(size: int, count: int) -> None:
    targets = [np.zeros(size * count, np.int64) for _ in range(size)]
    carry([all_gathered(size, values(r, count), targets[r]) for r in range(size)])
    for target in targets:
        assert np.array_equal(target, np.concatenate([values(r, count) for r in range(size)]))


@given(SIZES, COUNTS)
def test_all_to_all_of_equal_parts(size: int, count: int) -> None:
    sources = [values(r, size * count).reshape(size, count) for r in range(size)]
    targets = [np.zeros(size * count, np.int64) for _ in range(size)]
    carry([exchanged(size, sources[r].reshape(-1), targets[r], None, None) for r in range(size)])
    for rank, target in enumerate(targets):
        assert np.array_equal(target, np.concatenate([source[rank] for source in sources]))


@given(SIZES.flatmap(lambda size: st.lists(st.lists(COUNTS, min_size=size, max_size=size), min_size=size,
                                           max_size=size)))  # fmt: skip
def test_all_to_all_of_uneven_parts(table: list[list[int]]) -> None:
    size = len(table)
    sources = [values(r, sum(table[r])) for r in range(size)]
    come = [[table[source][rank] for source in range(size)] for rank in range(size)]
    targets = [np.zeros(sum(come[r]), np.int64) for r in range(size)]
    carry([exchanged(size, sources[r], targets[r], table[r], come[r]) for r in range(size)])
    for rank, target in enumerate(targets):
        theirs = [parts(sources[source], size, table[source])[rank] for source in range(size)]
        assert np.array_equal(target, np.concatenate(theirs))


def test_carrying_out_sees_what_does_not_match() -> None:
    array = np.arange(2)
    with pytest.raises(AssertionError, match="without its receive"):
        carry([[Move(True, 1, array)], []])
    with pytest.raises(IndexError):
        carry([[], [Move(False, 0, array)]])
    with pytest.raises(ValueError):
        carry([[Move(True, 1, array)], [Move(False, 0, array[:1])]])
    with pytest.raises(AssertionError, match="empty"):
        carry([[Move(True, 0, array[:0])]])


def test_parts_share_the_memory_and_cover_it() -> None:
    array = np.arange(6)
    assert [part.tolist() for part in parts(array, 3)] == [[0, 1], [2, 3], [4, 5]]
    assert [part.tolist() for part in parts(array, 3, [4, 0, 2])] == [[0, 1, 2, 3], [], [4, 5]]
    assert all(np.shares_memory(array, part) for part in parts(array, 3))


def test_moves_of_device_memory_are_geometry_alone() -> None:
    source = geometry(1 << 40, (6,), None, np.dtype(np.float32), 2, "tensor")
    target = geometry(1 << 41, (5,), None, np.dtype(np.float32), 2, "other")
    moves = exchanged(2, source, target, [2, 4], [5, 0])
    seen: list[Any] = [(sends, peer, array) for sends, peer, array in moves]
    places = [(sends, peer, array.pointer, array.size) for sends, peer, array in seen]
    assert places == [(True, 0, 1 << 40, 2), (True, 1, (1 << 40) + 8, 4), (False, 0, 1 << 41, 5)]
    assert worth([Move(True, 0, source[:0])]) == []
