"""Which arrays an operation reads and writes, and what is copied before and after."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.base import Operation
from aiodist.backends.host.local.memory import memory, part_bounds
from aiodist.types import NO_ROOT, Call, Kind, ReduceOp


def operation(
    kind: Kind, source: Any, target: Any, root: int = NO_ROOT, factor: float | None = None, sizes: Any = None
) -> Operation:
    like = source if source is not None else target
    like = like[0] if isinstance(like, list) else like
    reduce = ReduceOp.SUM if kind in (Kind.all_reduce, Kind.reduce, Kind.reduce_scatter) else None
    call = Call(kind, 0, like.dtype, like.shape, reduce, root)
    work: Any = None
    return Operation(call, work, source, target, None, lambda _: None, factor=factor, sizes=sizes)


def share(a: Any, b: Any) -> bool:
    return np.shares_memory(a, b)


@given(st.integers(0, 10_000), st.integers(1, 17), st.sampled_from([1, 2, 4, 8, 16]))
def test_parts_are_whole_cache_lines_and_cover_everything(count: int, size: int, itemsize: int) -> None:
    bounds = part_bounds(count, size, itemsize)
    assert bounds[0] == 0
    assert bounds[-1] == count
    assert bounds == sorted(bounds)
    assert all(low * itemsize % 64 == 0 for low in bounds[:-1] if low < count)
    assert max(high - low for low, high in pairwise(bounds)) == bounds[1]


def test_in_place_and_contiguous_copies_nothing() -> None:
    tensor = np.arange(24.0).reshape(2, 12)
    made = memory(operation(Kind.all_reduce, tensor, tensor), 0, 2)
    assert made.send[0] is made.recv[0]
    assert share(made.send[0], tensor)
    assert not made.before
    assert not made.after


def test_a_strided_tensor_is_staged_and_written_back() -> None:
    tensor = np.arange(24.0)[::2]
    made = memory(operation(Kind.all_reduce, tensor, tensor), 0, 2)
    assert not share(made.recv[0], tensor)
    made.fill()
    assert (made.send[0] == tensor).all()
    made.recv[0][...] = 7
    made.empty()
    assert (tensor == 7).all()


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("strided", [False, True])
def test_a_factor_never_reaches_a_source_that_must_survive(separate: bool, strided: bool) -> None:
    source = np.arange(24.0)[:: 2 if strided else 1]
    target = np.zeros_like(source) if separate else source
    before = source.copy()
    made = memory(operation(Kind.all_reduce, source, target, factor=3.0), 1, 2)
    made.fill()
    assert (made.send[0] == before * 3).all()
    assert not separate or (source == before).all()


def test_reduce_leaves_the_tensors_of_the_others_alone() -> None:
    tensor = np.arange(8.0)
    made = memory(operation(Kind.reduce, tensor, None, root=1), 0, 2)
    assert share(made.send[0], tensor)
    assert made.recv == []


def test_parts_of_what_is_dealt() -> None:
    source, target = np.arange(12), np.zeros(12, int)
    made = memory(operation(Kind.all_to_all, source, target), 1, 3)
    assert [list(part) for part in made.send] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert made.longest == 4
    assert all(share(part, target) for part in made.recv)
    made = memory(operation(Kind.scatter, source, np.zeros(4, int), root=1, sizes=[1, 4, 7]), 1, 3)
    assert [part.size for part in made.send] == [1, 4, 7]
    assert made.longest == 7
    made = memory(operation(Kind.all_gather, np.arange(2), [np.zeros(2, int) for _ in range(3)]), 0, 3)
    assert made.longest == 2
    assert len(made.recv) == 3
