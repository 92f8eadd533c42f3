"""Halves are reduced in float32, and rounded once; sums of small integers wrap around."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist.backends.base import Operation
from aiodist.backends.foreign.task import prepare
from aiodist.backends.mpi import tables
from aiodist.backends.mpi.widened import Widened, widened
from aiodist.base.types import BFLOAT16, NO_ROOT, Call, Kind, ReduceOp

HALVES = pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
SIZE = 3


def task_of(
    kind: Kind, source: Any, target: Any, op: ReduceOp, factor: float | None = None, root: int = NO_ROOT
) -> Widened:
    """The task of a reduction by three ranks."""
    call = Call(kind, 0, source.dtype, source.shape, op, root)
    operation = Operation(call, None, source, target, None, print, factor=factor)  # type: ignore[arg-type]
    wide = tables.wide(op, source.dtype)
    assert wide is not None
    return widened(prepare(operation, 0, SIZE), wide)


@HALVES
def test_in_place(dtype: np.dtype[Any]) -> None:
    tensor = (np.arange(70_000) % 1999).astype(dtype)  # several blocks
    before = tensor.astype(np.float32)
    task = task_of(Kind.all_reduce, tensor, tensor, ReduceOp.SUM)
    task.fill()
    assert task.source is not None
    assert task.source is task.target
    assert task.source.dtype == np.float32
    assert np.array_equal(task.source, before)
    assert np.array_equal(tensor.astype(np.float32), before), "only `empty` writes the user's tensor"
    task.source[:] = before + 3.0009765625  # what no half holds
    task.empty()
    assert np.array_equal(tensor, (before + 3.0009765625).astype(dtype))


@HALVES
def test_strided_tensors_go_through_the_halves(dtype: np.dtype[Any]) -> None:
    wide = np.full((4, 6), -1.0).astype(dtype)
    tensor = wide[:, ::2]
    tensor[...] = np.arange(12).reshape(4, 3)
    task = task_of(Kind.all_reduce, tensor, tensor, ReduceOp.MAX)
    task.fill()
    assert task.source is not None
    assert task.source.tolist() == list(range(12))
    task.source += 100
    task.empty()
    assert tensor.astype(int).tolist() == (np.arange(12).reshape(4, 3) + 100).tolist()
    assert (wide[:, 1::2].astype(int) == -1).all()


@HALVES
def test_average_and_factor_are_computed_wide(dtype: np.dtype[Any]) -> None:
    tensor = np.array([1, 2, 60_000]).astype(dtype)
    value = tensor.astype(np.float32)
    task = task_of(Kind.all_reduce, tensor, tensor, ReduceOp.AVG)
    assert task.reduce is ReduceOp.SUM
    task.fill()
    assert task.target is not None
    task.target[:] = value * 3  # 180000 is no float16
    task.empty()
    assert np.array_equal(tensor, value.astype(dtype))
    task = task_of(Kind.all_reduce, tensor, tensor, ReduceOp.PREMUL_SUM, 1 / 3)
    task.fill()
    assert task.source is not None
    assert np.array_equal(task.source, value * np.float32(1 / 3))


@HALVES
@pytest.mark.parametrize("count", [2, 6])
def test_reduce_scatter_is_never_in_place(dtype: np.dtype[Any], count: int) -> None:
    source, target = np.arange(6).astype(dtype), np.zeros(count, dtype)
    task = task_of(Kind.reduce_scatter, source, target, ReduceOp.SUM)
    task.fill()
    assert task.source is not None
    assert task.target is not None
    assert not np.shares_memory(task.source, task.target)
    task.target[:] = np.arange(count) + 7
    task.empty()
    assert target.tolist() == [number + 7 for number in range(count)]
    assert source.tolist() == list(range(6))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_sums_of_small_integers_wrap_around(dtype: type[np.integer[Any]]) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    parts = [np.array([low, high, high, number, 7], dtype) for number in range(SIZE)]
    tensor = parts[0][::-1].copy()[::-1]  # strided, so that it goes through the narrow task
    task = task_of(Kind.all_reduce, tensor, tensor, ReduceOp.SUM)
    task.fill()
    assert task.source is not None
    assert task.source is task.target
    for part in parts[1:]:
        other = np.array(part, np.int64).astype(task.source.dtype)
        task.source += other
    task.empty()
    with np.errstate(over="ignore"):
        assert tensor.tolist() == (parts[0] + parts[1] + parts[2]).tolist()


def test_who_gets_nothing_writes_nothing() -> None:
    source = np.arange(4).astype(np.float16)
    task = task_of(Kind.reduce, source, None, ReduceOp.AVG, root=1)
    task.fill()
    assert task.target is None
    task.empty()
    assert task.empty_ns() == 0
    assert source.tolist() == [0, 1, 2, 3]


def test_what_does_not_fit_is_infinite_without_a_warning() -> None:
    tensor = np.array([60_000.0]).astype(np.float16)
    task = task_of(Kind.all_reduce, tensor, tensor, ReduceOp.SUM)
    task.fill()
    assert task.source is not None
    task.source *= 3
    task.empty()
    assert np.isinf(tensor[0])


def test_its_cost_is_told() -> None:
    tensor = np.zeros(1000, np.float16)
    sums = task_of(Kind.all_reduce, tensor, tensor, ReduceOp.SUM)
    averages = task_of(Kind.all_reduce, tensor, tensor, ReduceOp.AVG)
    scaled = task_of(Kind.all_reduce, tensor, tensor, ReduceOp.PREMUL_SUM, 0.5)
    assert sums.fill_ns() > 0 and sums.empty_ns() > 0
    assert averages.empty_ns() > sums.empty_ns()
    assert scaled.fill_ns() > sums.fill_ns()
