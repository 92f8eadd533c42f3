"""Which buffer a schedule works on, and the copies before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.base import Operation
from aiodist.backends.host.chunks import Chunks, chunks
from aiodist.backends.schedules.select import select
from aiodist.backends.schedules.steps import Schedule
from aiodist.base.types import NO_ROOT, Call, Kind, ReduceOp

F64 = np.dtype(np.float64)


def operation(
    kind: Kind, source: Any, target: Any, op: ReduceOp | None = None, root: int = NO_ROOT
) -> Operation:
    """An operation on arrays; no Work is needed to prepare it."""
    first = source if source is not None else target
    first = first[0] if isinstance(first, list) else first
    call = Call(kind, 0, first.dtype, first.shape, op, root)
    return Operation(call, None, source, target, None, print)  # type: ignore[arg-type]


def ready(of: Operation, rank: int = 1, size: int = 3) -> tuple[Chunks, Schedule]:
    """The memory and the schedule it was made for."""
    schedule = select(of.call.kind, rank, size, of.call.root, of.call.nbytes)
    return chunks(of, rank, size, schedule), schedule


def strided(*shape: int) -> Any:
    """An array with distinct values and gaps between its elements."""
    wide = np.full((*shape[:-1], shape[-1] * 2), -1.0)
    view = wide[..., ::2]
    view[...] = np.arange(float(np.prod(shape))).reshape(shape)
    return view


def test_contiguous_in_place_works_in_the_users_memory() -> None:
    array = np.arange(6.0).reshape(2, 3)
    made, _ = ready(operation(Kind.all_reduce, array, array, ReduceOp.SUM))
    assert np.shares_memory(made.target, array)
    assert made.target.shape == (6,)
    assert not made.before and not made.after
    assert made.fill_ns() == 0


def test_strided_in_place_is_staged_and_written_back() -> None:
    array = strided(2, 3)
    made, _ = ready(operation(Kind.all_reduce, array, array, ReduceOp.SUM))
    assert not np.shares_memory(made.target, array)
    made.fill()
    assert list(made.target) == [0, 1, 2, 3, 4, 5]
    made.target += 10
    assert array[0, 1] == 1
    made.empty()
    assert np.array_equal(array, np.arange(10.0, 16).reshape(2, 3))
    assert (array.base[:, 1::2] == -1).all()
    assert made.fill_ns() > 0 and made.empty_ns() > 0


def test_out_of_place_leaves_the_input_alone() -> None:
    source, target = strided(4), np.zeros(4)
    made, _ = ready(operation(Kind.all_reduce, source, target, ReduceOp.SUM))
    assert np.shares_memory(made.target, target)
    made.fill()
    assert list(target) == [0, 1, 2, 3]


@pytest.mark.parametrize("op", [ReduceOp.AVG, ReduceOp.SUM])
def test_avg_divides_at_the_end(op: ReduceOp) -> None:
    array = np.array([3.0, 6.0, 9.0])
    made, _ = ready(operation(Kind.all_reduce, array, array, op), size=3)
    made.empty()
    assert list(array) == ([1, 2, 3] if op is ReduceOp.AVG else [3, 6, 9])


def test_broadcast_writes_everywhere_but_on_the_root() -> None:
    for rank in range(3):
        array = strided(3)
        made, _ = ready(operation(Kind.broadcast, array, array, root=1), rank=rank)
        made.fill()
        if rank == 1:
            assert list(made.target) == [0, 1, 2]
        made.target[:] = 7
        made.empty()
        assert list(array) == ([0, 1, 2] if rank == 1 else [7, 7, 7])


def test_broadcast_root_may_be_read_only() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    made, _ = ready(operation(Kind.broadcast, array, array, root=1), rank=1)
    assert np.shares_memory(made.target, array)
    assert not made.before and not made.after


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("count", [3, 100_000])
def test_reduce_leaves_the_tensors_of_others_as_they_were(size: int, count: int) -> None:
    for rank in range(1, size):
        array = np.arange(float(count))
        made, schedule = ready(
            operation(Kind.reduce, array, None, ReduceOp.AVG, root=0), rank=rank, size=size
        )
        made.fill()
        if schedule.writes:
            assert not np.shares_memory(made.target, array)
        assert np.array_equal(made.target, array)
        made.empty()  # the root alone divides
        assert np.array_equal(array, np.arange(float(count)))


def test_reduce_on_the_root_is_in_place() -> None:
    array = np.array([3.0, 6.0])
    made, _ = ready(operation(Kind.reduce, array, array, ReduceOp.AVG, root=0), rank=0)
    assert np.shares_memory(made.target, array)
    made.empty()
    assert list(array) == [1, 2]


def test_all_gather_presets_its_own_row() -> None:
    source, target = strided(2, 2), np.full((3, 2, 2), -5.0)
    made, _ = ready(operation(Kind.all_gather, source, target))
    made.fill()
    assert np.array_equal(target[1], source)
    assert (target[[0, 2]] == -5).all()


def test_all_gather_into_a_list() -> None:
    targets = [np.zeros(2), strided(2), np.zeros(2)]
    made, _ = ready(operation(Kind.all_gather, np.array([8.0, 9.0]), targets))
    made.fill()
    assert list(made.target[2:4]) == [8, 9]
    made.target[:] = np.arange(6.0)
    made.empty()
    assert [list(target) for target in targets] == [[0, 1], [2, 3], [4, 5]]


def test_reduce_scatter_works_in_a_copy_and_gives_its_part() -> None:
    source, target = strided(6, 2), np.zeros((2, 2))
    made, _ = ready(operation(Kind.reduce_scatter, source, target, ReduceOp.AVG))
    made.fill()
    assert not np.shares_memory(made.target, source)
    made.empty()
    assert np.array_equal(target, source[2:4] / 3)


def test_reduce_scatter_of_a_list() -> None:
    sources = [np.arange(2.0) + 10 * part for part in range(3)]
    target = strided(2)
    made, _ = ready(operation(Kind.reduce_scatter, sources, target, ReduceOp.SUM))
    made.fill()
    assert list(made.target) == [0, 1, 10, 11, 20, 21]
    made.empty()
    assert list(target) == [10, 11]


@pytest.mark.parametrize("kind", [Kind.barrier, Kind.new_group])
def test_no_memory_for_what_moves_nothing(kind: Kind) -> None:
    call = Call(kind, 0, np.dtype(np.uint8), (0,))
    of = Operation(call, None, None, None, None, print)  # type: ignore[arg-type]
    made, _ = ready(of)
    assert made.target.size == 0
    made.fill()
    made.empty()


@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    axes=st.randoms(use_true_random=False),
    steps=st.lists(st.sampled_from([1, 2, -1, -2]), min_size=3, max_size=3),
)
def test_any_layout_comes_back_as_it_went(shape: list[int], axes: Any, steps: list[int]) -> None:
    order = list(range(len(shape)))
    axes.shuffle(order)
    base: Any = np.zeros([abs(steps[i]) * n for i, n in enumerate(shape)], F64).transpose(order)
    array = base[(..., *(slice(None, None, steps[axis]) for axis in order))]
    array[...] = np.arange(float(array.size)).reshape(array.shape)
    made, _ = ready(operation(Kind.all_reduce, array, array, ReduceOp.SUM))
    made.fill()
    assert list(made.target) == list(range(array.size))
    made.target *= 2
    made.empty()
    assert list(array.reshape(-1)) == [2 * n for n in range(array.size)]
