"""One operation as contiguous arrays: what an engine sees, and what users see before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.arrays.device import DeviceArray, geometry
from aiodist.backends.base import Operation
from aiodist.backends.foreign.task import Task, prepare
from aiodist.base.types import BFLOAT16, NO_ROOT, Call, Kind, ReduceOp
from aiodist.testing.programs import same_bits

SIZE = 3
SUM, AVG = ReduceOp.SUM, ReduceOp.AVG


def operation(
    kind: Kind,
    source: Any,
    target: Any,
    op: ReduceOp | None = None,
    root: int = NO_ROOT,
    factor: float | None = None,
) -> Operation:
    """An operation on arrays; no Work is needed to prepare it."""
    first = source if source is not None else target
    first = first[0] if isinstance(first, list) else first
    call = Call(kind, 0, first.dtype, first.shape, op, root)
    return Operation(call, None, source, target, None, print, factor=factor)  # type: ignore[arg-type]


def task_of(*arguments: Any, rank: int = 1, averages: bool = False, **more: Any) -> Task:
    return prepare(operation(*arguments, **more), rank, SIZE, np.empty, averages)


def strided(*shape: int) -> Any:
    """Distinct values with gaps of -1 between them."""
    wide = np.full((*shape[:-1], shape[-1] * 2), -1.0)
    wide[..., ::2] = np.arange(float(np.prod(shape))).reshape(shape)
    return wide[..., ::2]


# ── what is the user's own, and what is staged ───────────────────────────────────────────────────────


def test_contiguous_tensors_are_handed_over_as_they_are() -> None:
    tensor, out = np.arange(6.0).reshape(2, 3), np.zeros((2, 3))
    task = task_of(Kind.all_reduce, tensor, out, SUM)
    assert task.source is not None and task.target is not None
    assert task.source.shape == task.target.shape == (6,)
    assert np.shares_memory(task.source, tensor) and np.shares_memory(task.target, out)
    assert task.fill_ns() == task.empty_ns() == 0


def test_in_place_is_one_array() -> None:
    for tensor in (np.arange(6.0), strided(2, 3)):
        task = task_of(Kind.all_reduce, tensor, tensor, SUM)
        assert task.source is task.target


def test_strided_in_place_comes_back() -> None:
    tensor = strided(2, 3)
    task = task_of(Kind.all_reduce, tensor, tensor, SUM)
    assert task.fill_ns() > 0 and task.empty_ns() > 0
    task.fill()
    assert task.source is not None
    assert task.source.tolist() == [0, 1, 2, 3, 4, 5]
    task.source += 10
    assert tensor[0, 1] == 1  # not before it is over
    task.empty()
    assert np.array_equal(tensor, np.arange(10.0, 16).reshape(2, 3))
    assert (tensor.base[:, 1::2] == -1).all()


def test_strided_source_is_left_alone() -> None:
    tensor, out = strided(4), strided(4)
    task = task_of(Kind.all_reduce, tensor, out, SUM)
    task.fill()
    assert task.source is not None and task.target is not None
    task.source += 5
    task.target[:] = task.source
    task.empty()
    assert tensor.tolist() == [0, 1, 2, 3]
    assert out.tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(("rank", "reads", "writes"), [(0, True, False), (1, False, True)])
def test_broadcast_reads_at_the_root_and_writes_elsewhere(rank: int, reads: bool, writes: bool) -> None:
    tensor = strided(3)
    task = task_of(Kind.broadcast, None, tensor, root=0, rank=rank)
    assert (task.root, task.kind) == (0, Kind.broadcast)
    assert (task.fill_ns() > 0, task.empty_ns() > 0) == (reads, writes)
    task.fill()
    assert task.target is not None
    if rank == 0:
        assert task.target.tolist() == [0, 1, 2]
        task.target[:] = 9  # whatever an engine does to its staging
        task.empty()
        assert tensor.tolist() == [0, 1, 2]
    else:
        task.target[:] = [7, 8, 9]
        task.empty()
        assert tensor.tolist() == [7, 8, 9]


def test_lists_are_one_array_after_the_other() -> None:
    tensors = [np.arange(4.0).reshape(2, 2), strided(2) + 10, np.zeros((0, 3))]
    task = task_of(Kind.reduce_scatter, tensors, np.zeros(2), SUM)
    task.fill()
    assert task.source is not None
    assert task.source.tolist() == [0, 1, 2, 3, 10, 11]
    rows = [np.zeros((2, 2)), strided(2), np.zeros((0, 3))]
    task = task_of(Kind.all_gather, np.arange(2.0), rows)
    assert task.target is not None
    task.target[:] = [5, 6, 7, 8, 9, 4]
    task.empty()
    assert [row.tolist() for row in rows] == [[[5, 6], [7, 8]], [9, 4], []]


def test_messages() -> None:
    tensor = strided(3)
    task = prepare(operation(Kind.send, tensor, None), 0, SIZE)
    task.fill()
    assert task.source is not None and task.target is None
    assert task.source.tolist() == [0, 1, 2]
    task = prepare(operation(Kind.recv, None, tensor), 0, SIZE)
    assert task.source is None and task.target is not None
    task.target[:] = [4, 5, 6]
    task.empty()
    assert tensor.tolist() == [4, 5, 6]


@given(st.data())
def test_any_strides_go_in_and_out(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 4), min_size=0, max_size=3)))
    memory = np.arange(2000.0)
    layouts = [memory[: int(np.prod(shape))].reshape(shape)]
    if shape:
        steps = tuple(data.draw(st.integers(1, 3)) for _ in shape)
        wide = memory[: int(np.prod([n * s for n, s in zip(shape, steps, strict=True)]))]
        wide = wide.reshape([n * s for n, s in zip(shape, steps, strict=True)])
        layouts += [wide[tuple(slice(None, None, s) for s in steps)], layouts[0].T, layouts[0][::-1]]
    tensor = data.draw(st.sampled_from(layouts))
    before = tensor.copy()
    task = task_of(Kind.all_reduce, tensor, tensor, SUM)
    task.fill()
    assert task.source is not None
    assert task.source.tolist() == before.reshape(-1).tolist()
    task.source += 5000
    task.empty()
    assert np.array_equal(tensor, before + 5000)


# ── reductions ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tensor", [np.arange(1.0, 4), strided(3)])
def test_factor_multiplies_a_copy(tensor: Any) -> None:
    before, out = tensor.copy(), np.zeros(3)
    task = task_of(Kind.all_reduce, tensor, out, ReduceOp.PREMUL_SUM, factor=0.5)
    assert task.reduce is SUM
    assert task.fill_ns() > 0
    task.fill()
    assert task.source is not None
    assert np.array_equal(task.source, before * 0.5)
    assert np.array_equal(tensor, before)


def test_factor_of_what_is_overwritten_anyway() -> None:
    tensor = np.arange(1.0, 4)
    task = task_of(Kind.all_reduce, tensor, tensor, ReduceOp.PREMUL_SUM, factor=0.5)
    task.fill()
    assert tensor.tolist() == [0.5, 1, 1.5]
    kept = np.arange(1.0, 4)  # reduce, not at the root
    task = task_of(Kind.reduce, kept, None, ReduceOp.PREMUL_SUM, 0, 0.5)
    task.fill()
    assert kept.tolist() == [1, 2, 3]


@pytest.mark.parametrize("size", [1, SIZE])
@pytest.mark.parametrize("target", [np.zeros(3), None])
def test_mean_is_a_sum_that_is_divided(size: int, target: Any) -> None:
    """On every rank, whether it gets the result or not: they must ask their library for the same."""
    given = operation(Kind.reduce, np.arange(3.0), target, AVG, 0)
    task = prepare(given, 0, size, np.empty)
    assert task.reduce is SUM
    if target is not None:
        assert task.target is not None
        task.target[:] = [3, 6, 9]
        task.empty()
        assert task.target.tolist() == [3 / size, 6 / size, 9 / size]
    else:
        task.empty()
        assert task.empty_ns() == 0


def test_engine_that_averages_has_nothing_left_to_do() -> None:
    tensor = np.arange(3.0)
    task = task_of(Kind.all_reduce, tensor, tensor, AVG, averages=True)
    assert task.reduce is AVG
    task.empty()
    assert tensor.tolist() == [0, 1, 2]
    assert task.empty_ns() == 0


@pytest.mark.parametrize("op", [op for op in ReduceOp if op not in (AVG, ReduceOp.PREMUL_SUM)])
def test_other_reductions_are_as_they_are(op: ReduceOp) -> None:
    tensor = np.arange(3)
    assert task_of(Kind.all_reduce, tensor, tensor, op).reduce is op


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.complex64])
def test_rows_are_reduced_in_rank_order_with_one_nan(dtype: Any) -> None:
    """Two ranks with the same rows get the same bits, wherever the NaNs come from."""
    rows = [np.array([1, 2, np.nan], dtype), np.array([4, np.nan, 5], dtype), np.array([7, 8, 9], dtype)]
    negative = [row.copy() for row in rows]
    for row in negative:
        row[np.isnan(row)] *= np.array(-1, dtype)  # another NaN
    results = []
    for given_rows in (rows, negative):
        tensor = np.zeros(3, dtype)
        task = task_of(Kind.all_reduce, tensor, tensor, AVG)
        task.gathered(given_rows)
        assert task.empty_ns() > 0
        task.empty()
        results.append(tensor)
    assert same_bits(results[0], results[1])
    assert results[0][0] == 4
    assert np.isnan(results[0][1:]).all()


# ── on a device ──────────────────────────────────────────────────────────────────────────────────────


def on_device(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> DeviceArray:
    return geometry(pointer, shape, strides, np.dtype(np.float32), 1, object())


def test_device_tensors_are_prepared_without_being_read() -> None:
    staged: list[DeviceArray] = []

    def allocate(count: int, dtype: np.dtype[Any]) -> DeviceArray:
        staged.append(geometry(1 << 44, (count,), None, dtype, 1, "staging"))
        return staged[-1]

    tensor, out = on_device(1 << 40, (4, 6), (48, 8)), on_device(1 << 42, (4, 6))
    task = prepare(operation(Kind.all_reduce, tensor, out, SUM), 0, 2, allocate)
    assert isinstance(task.source, DeviceArray) and isinstance(task.target, DeviceArray)
    assert (task.source.pointer, task.source.shape) == (1 << 44, (24,))
    assert (task.target.pointer, task.target.shape) == (1 << 42, (24,))
    ((to, source),) = task.before
    assert isinstance(to, DeviceArray)
    assert (to.pointer, to.shape, source is tensor) == (1 << 44, (4, 6), True)
    assert task.after == []
    assert task.fill_ns() > 0 and task.empty_ns() == 0


def test_list_of_device_tensors_is_staged_in_one() -> None:
    rows = [on_device(1 << 40, (2, 3)), on_device(1 << 41, (6,)), on_device(1 << 42, (0,))]

    def allocate(count: int, dtype: np.dtype[Any]) -> DeviceArray:
        return geometry(1 << 44, (count,), None, dtype, 1, "staging")

    task = prepare(operation(Kind.all_gather, on_device(1 << 43, (6,)), rows), 0, 2, allocate)
    assert all(to is row for (to, _), row in zip(task.after, rows, strict=True))
    places: Any = [source for _, source in task.after[:2]]
    assert [(place.pointer, place.shape) for place in places] == [(1 << 44, (2, 3)), ((1 << 44) + 24, (6,))]
    assert task.after[2][1].shape == (0,)
