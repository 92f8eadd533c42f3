"""Which buffer an operation works on, and the copies before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.base import Operation
from aiodist.backends.host.prepare import Job, prepare, prepare_message
from aiodist.schedules import Schedule, select
from aiodist.types import NO_ROOT, Call, Kind, ReduceOp

F64 = np.dtype(np.float64)


def operation(
    kind: Kind, source: Any, target: Any, op: ReduceOp | None = None, root: int = NO_ROOT
) -> Operation:
    """An operation on arrays; no Work is needed to prepare it."""
    first = source if source is not None else target
    first = first[0] if isinstance(first, list) else first
    call = Call(kind, 0, first.dtype, first.shape, op, root)
    return Operation(call, None, source, target, None, print)  # type: ignore[arg-type]


def ready(of: Operation, rank: int = 1, size: int = 3) -> tuple[Job, Schedule]:
    """The job and the schedule it was made for."""
    schedule = select(of.call.kind, rank, size, of.call.root, of.call.nbytes)
    return prepare(of, rank, size, schedule), schedule


def strided(*shape: int) -> Any:
    """An array with distinct values and gaps between its elements."""
    wide = np.full((*shape[:-1], shape[-1] * 2), -1.0)
    view = wide[..., ::2]
    view[...] = np.arange(float(np.prod(shape))).reshape(shape)
    return view


def test_contiguous_in_place_works_in_the_users_memory() -> None:
    array = np.arange(6.0).reshape(2, 3)
    job, _ = ready(operation(Kind.all_reduce, array, array, ReduceOp.SUM))
    assert np.shares_memory(job.buffer, array)
    assert job.buffer.shape == (6,)
    assert not job.before and not job.after
    assert job.fill_ns() == 0


def test_strided_in_place_is_staged_and_written_back() -> None:
    array = strided(2, 3)
    job, _ = ready(operation(Kind.all_reduce, array, array, ReduceOp.SUM))
    assert not np.shares_memory(job.buffer, array)
    job.fill()
    assert list(job.buffer) == [0, 1, 2, 3, 4, 5]
    job.buffer += 10
    assert array[0, 1] == 1
    job.empty()
    assert np.array_equal(array, np.arange(10.0, 16).reshape(2, 3))
    assert (array.base[:, 1::2] == -1).all()
    assert job.fill_ns() > 0 and job.empty_ns() > 0


def test_out_of_place_leaves_the_input_alone() -> None:
    source, target = strided(4), np.zeros(4)
    job, _ = ready(operation(Kind.all_reduce, source, target, ReduceOp.SUM))
    assert np.shares_memory(job.buffer, target)
    job.fill()
    assert list(target) == [0, 1, 2, 3]


@pytest.mark.parametrize("op", [ReduceOp.AVG, ReduceOp.SUM])
def test_avg_divides_at_the_end(op: ReduceOp) -> None:
    array = np.array([3.0, 6.0, 9.0])
    job, _ = ready(operation(Kind.all_reduce, array, array, op), size=3)
    job.empty()
    assert list(array) == ([1, 2, 3] if op is ReduceOp.AVG else [3, 6, 9])


def test_broadcast_writes_everywhere_but_on_the_root() -> None:
    for rank in range(3):
        array = strided(3)
        job, _ = ready(operation(Kind.broadcast, array, array, root=1), rank=rank)
        job.fill()
        if rank == 1:
            assert list(job.buffer) == [0, 1, 2]
        job.buffer[:] = 7
        job.empty()
        assert list(array) == ([0, 1, 2] if rank == 1 else [7, 7, 7])


def test_broadcast_root_may_be_read_only() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    job, _ = ready(operation(Kind.broadcast, array, array, root=1), rank=1)
    assert np.shares_memory(job.buffer, array)
    assert not job.before and not job.after


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("count", [3, 100_000])
def test_reduce_leaves_the_tensors_of_others_as_they_were(size: int, count: int) -> None:
    for rank in range(1, size):
        array = np.arange(float(count))
        job, schedule = ready(operation(Kind.reduce, array, None, ReduceOp.AVG, root=0), rank=rank, size=size)
        job.fill()
        if schedule.writes:
            assert not np.shares_memory(job.buffer, array)
        assert np.array_equal(job.buffer, array)
        job.empty()  # the root alone divides
        assert np.array_equal(array, np.arange(float(count)))


def test_reduce_on_the_root_is_in_place() -> None:
    array = np.array([3.0, 6.0])
    job, _ = ready(operation(Kind.reduce, array, array, ReduceOp.AVG, root=0), rank=0)
    assert np.shares_memory(job.buffer, array)
    job.empty()
    assert list(array) == [1, 2]


def test_all_gather_presets_its_own_row() -> None:
    source, target = strided(2, 2), np.full((3, 2, 2), -5.0)
    job, _ = ready(operation(Kind.all_gather, source, target))
    job.fill()
    assert np.array_equal(target[1], source)
    assert (target[[0, 2]] == -5).all()


def test_all_gather_into_a_list() -> None:
    targets = [np.zeros(2), strided(2), np.zeros(2)]
    job, _ = ready(operation(Kind.all_gather, np.array([8.0, 9.0]), targets))
    job.fill()
    assert list(job.buffer[2:4]) == [8, 9]
    job.buffer[:] = np.arange(6.0)
    job.empty()
    assert [list(target) for target in targets] == [[0, 1], [2, 3], [4, 5]]


def test_reduce_scatter_works_in_a_copy_and_gives_its_part() -> None:
    source, target = strided(6, 2), np.zeros((2, 2))
    job, _ = ready(operation(Kind.reduce_scatter, source, target, ReduceOp.AVG))
    job.fill()
    assert not np.shares_memory(job.buffer, source)
    job.empty()
    assert np.array_equal(target, source[2:4] / 3)


def test_reduce_scatter_of_a_list() -> None:
    sources = [np.arange(2.0) + 10 * part for part in range(3)]
    target = strided(2)
    job, _ = ready(operation(Kind.reduce_scatter, sources, target, ReduceOp.SUM))
    job.fill()
    assert list(job.buffer) == [0, 1, 10, 11, 20, 21]
    job.empty()
    assert list(target) == [10, 11]


@pytest.mark.parametrize("kind", [Kind.barrier, Kind.new_group])
def test_no_memory_for_what_moves_nothing(kind: Kind) -> None:
    call = Call(kind, 0, np.dtype(np.uint8), (0,))
    of = Operation(call, None, None, None, None, print)  # type: ignore[arg-type]
    job, _ = ready(of)
    assert job.buffer.size == 0
    job.fill()
    job.empty()


def test_messages() -> None:
    array = np.arange(4.0)
    assert np.shares_memory(prepare_message(operation(Kind.send, array, None)).buffer, array)
    job = prepare_message(operation(Kind.send, strided(3), None))
    job.fill()
    assert list(job.buffer) == [0, 1, 2]
    target = strided(3)
    job = prepare_message(operation(Kind.recv, None, target))
    job.fill()
    job.buffer[:] = 7
    job.empty()
    assert list(target) == [7, 7, 7]


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
    job, _ = ready(operation(Kind.all_reduce, array, array, ReduceOp.SUM))
    job.fill()
    assert list(job.buffer) == list(range(array.size))
    job.buffer *= 2
    job.empty()
    assert list(array.reshape(-1)) == [2 * n for n in range(array.size)]
