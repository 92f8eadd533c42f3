from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.schedules.steps import Recv, RecvReduce, Send, chunk_bounds, from_root, schedule, spans


@given(count=st.integers(0, 10_000), chunks=st.integers(1, 70))
def test_chunks_cover_the_buffer_and_are_balanced(count: int, chunks: int) -> None:
    bounds = chunk_bounds(count, chunks)
    sizes = [b - a for a, b in itertools.pairwise(bounds)]
    assert bounds[0] == 0 and bounds[-1] == count and len(sizes) == chunks
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_chunks_are_equal_where_the_count_divides() -> None:
    assert chunk_bounds(12, 4) == [0, 3, 6, 9, 12]


def test_writes_tells_who_needs_a_working_copy() -> None:
    assert not schedule("x", 1, [(Send(1, 0, 1),), ()]).writes
    assert not schedule("x", 1, [(Recv(1, 0, 0),)]).writes
    assert schedule("x", 1, [(Recv(1, 0, 1),)]).writes
    assert schedule("x", 1, [(), (RecvReduce(1, 0, 1, left=True),)]).writes


def test_steps_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Send(1, 0, 1).peer = 2  # type: ignore[misc]


@given(chunks=st.integers(1, 70), start=st.integers(0, 69), length=st.integers(0, 70))
def test_spans_are_the_chunks_of_the_range_in_its_order(chunks: int, start: int, length: int) -> None:
    start, length = start % chunks, min(length, chunks)
    parts = spans(start, start + length, chunks)
    assert all(0 <= low <= high <= chunks for low, high in parts)
    assert [c for low, high in parts for c in range(low, high)] == [
        c % chunks for c in range(start, start + length)
    ]
    assert len(parts) == (2 if start + length > chunks else 1)


def test_rounds_for_another_root() -> None:
    rounds = [(Send(1, 1, 3), RecvReduce(2, 0, 1, left=True)), ()]
    assert from_root(rounds, 2, 4, chunks=False) == [(Send(3, 1, 3), RecvReduce(0, 0, 1, left=True)), ()]
    assert from_root(rounds, 2, 4, chunks=True) == [(Send(3, 3, 5), RecvReduce(0, 2, 3, left=True)), ()]
