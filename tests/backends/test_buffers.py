"""Which arrays an operation gives and is given, and what is copied before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.base import Operation
from aiodist.backends.buffers import Buffers, bounds_of, buffers, cut
from aiodist.base.types import NO_ROOT, Call, Kind, ReduceOp


def operation(
    kind: Kind, source: Any, target: Any, root: int = NO_ROOT, factor: float | None = None, **sizes: Any
) -> Operation:
    like = source if source is not None else target
    like = like[0] if isinstance(like, list) else like
    reduce = ReduceOp.SUM if kind in (Kind.all_reduce, Kind.reduce, Kind.reduce_scatter) else None
    call = Call(kind, 0, like.dtype, like.shape, reduce, root)
    work: Any = None
    return Operation(call, work, source, target, None, lambda _: None, factor=factor, **sizes)


def share(a: Any, b: Any) -> bool:
    return np.shares_memory(a, b)


def memory(of: Operation, rank: int, size: int) -> Buffers:
    """As a group in shared memory has it: a list stays where it is."""
    return buffers(of, rank, size, joined=False)


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
    assert all(share(part, target) for part in made.recv)
    made = memory(operation(Kind.scatter, source, np.zeros(4, int), root=1, source_sizes=[1, 4, 7]), 1, 3)
    assert [part.size for part in made.send] == [1, 4, 7]
    made = memory(operation(Kind.all_gather, np.arange(2), [np.zeros(2, int) for _ in range(3)]), 0, 3)
    assert len(made.recv) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_a_broadcast_gives_on_the_root_and_is_given_elsewhere(rank: int) -> None:
    tensor = np.arange(3.0)
    made = memory(operation(Kind.broadcast, tensor, tensor, root=0), rank, 2)
    assert (len(made.send), len(made.recv)) == ((1, 0) if rank == 0 else (0, 1))
    assert made.source is made.target


def test_a_list_is_joined_where_one_array_is_asked_for_and_left_alone_elsewhere() -> None:
    tensors = [np.arange(2.0), np.arange(6.0)[::2], np.zeros(0)]
    targets = [np.zeros(2), np.zeros(6)[::2], np.zeros(0)]
    of = operation(Kind.all_to_all, tensors, targets, source_sizes=[2, 3, 0], target_sizes=[2, 3, 0])
    for made in (memory(of, 0, 3), buffers(of, 0, 3)):
        made.fill()
        assert [part.tolist() for part in made.send] == [[0, 1], [0, 2, 4], []]
        for part in made.recv:
            part[...] = 7
        made.empty()
        assert [target.tolist() for target in targets] == [[7, 7], [7, 7, 7], []]
        for target in targets:
            target[...] = 0
    assert share(memory(of, 0, 3).send[0], tensors[0]) and memory(of, 0, 3).source is None
    joined = buffers(of, 0, 3).source
    assert joined is not None and joined.size == 5 and not share(joined, tensors[0])


def test_with_memory_of_its_own_nothing_is_the_users_and_nothing_is_multiplied() -> None:
    source, target = np.arange(4.0), np.zeros(4)
    made = buffers(operation(Kind.all_reduce, source, target, factor=2.0), 0, 2, own=True)
    assert made.source is not None and made.target is not None
    made.fill()
    assert made.source.tolist() == [0, 1, 2, 3] and not share(made.source, source)
    made.target[...] = 5
    assert target.tolist() == [0, 0, 0, 0]
    made.empty()
    assert target.tolist() == [5, 5, 5, 5]
    tensor = np.arange(3.0)
    made = buffers(operation(Kind.all_reduce, tensor, tensor), 0, 2, own=True)
    assert made.source is made.target and not share(made.source, tensor)


def test_messages() -> None:
    sent, got = np.arange(6.0)[::2], np.zeros(6)[::2]
    made = buffers(operation(Kind.send, sent, None), 0, 2)
    made.fill()
    assert [part.tolist() for part in made.send] == [[0, 2, 4]] and made.recv == []
    made = buffers(operation(Kind.recv, None, got), 0, 2)
    made.recv[0][...] = 7
    assert got.tolist() == [0, 0, 0]
    made.empty()
    assert got.tolist() == [7, 7, 7]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_parts_cover_an_array_and_share_its_memory(sizes: list[int]) -> None:
    array = np.arange(sum(sizes))
    parts = cut(array, sizes, len(sizes))
    assert [part.size for part in parts] == sizes
    assert np.concatenate(parts).tolist() == array.tolist()
    assert bounds_of(12, None, 3) == [0, 4, 8, 12]
