"""Device memory: allocation, copies, factors, reductions, in order on CuPy's current stream of the thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aiodist.backends.arrays.device import DeviceArray, geometry
from aiodist.backends.base import Array
from aiodist.backends.cuda import kernels
from aiodist.backends.foreign.task import Task
from aiodist.base.types import BFLOAT16, ReduceOp

_BITWISE = {ReduceOp.BAND: "and", ReduceOp.BOR: "or", ReduceOp.BXOR: "xor"}


def allocate(cupy: Any, device: int, count: int, dtype: np.dtype[Any]) -> DeviceArray:
    """New memory of the current device, uninitialised. It goes back to the current stream, which may give it
    away before what uses it is over on another stream."""
    memory = cupy.empty(count * dtype.itemsize, np.uint8)
    return geometry(memory.data.ptr, (count,), None, dtype, device, memory)


class Axis(NamedTuple):
    """One axis of two arrays: its length, and the bytes from one element to the next in each."""

    length: int
    to: int
    source: int


def axes_of(shape: Sequence[int], to: Sequence[int], source: Sequence[int]) -> list[Axis]:
    """The fewest axes over which two arrays of one shape can be walked, by their strides in bytes. The shape
    has elements."""
    axes: list[Axis] = []
    for axis in map(Axis, shape, to, source):
        if axis.length == 1:
            continue
        if axes:
            outer = axes[-1]
            if (outer.to, outer.source) == (axis.length * axis.to, axis.length * axis.source):
                axes[-1] = Axis(outer.length * axis.length, axis.to, axis.source)
                continue
        axes.append(axis)
    return axes


def copy(cupy: Any, to: Array, source: Array) -> None:
    """`to[...] = source`; same shape, any strides, and the same dtype, or a 16-bit integer and the 32-bit one
    of its kind: they are widened, or cut off."""
    if not to.size:
        return
    assert isinstance(to, DeviceArray)
    assert isinstance(source, DeviceArray)
    axes = axes_of(to.shape, to.strides, source.strides)
    if to.dtype == source.dtype:
        axes, size = _coarser(axes, to.itemsize, to.pointer | source.pointer)
        name = f"move_{kernels.size_name(size)}_{kernels.size_name(size)}"
    else:
        name = f"move_{_integer(to.dtype)}_{_integer(source.dtype)}"
    layout = np.zeros(1, kernels.LAYOUT)
    count = int(np.prod([axis.length for axis in axes], dtype=np.int64))
    layout["count"], layout["axes"] = count, len(axes)
    for i, axis in enumerate(axes):
        layout["shape"][0, i], layout["to"][0, i], layout["source"][0, i] = axis
    kernels.launch(cupy, name, count, (to.pointer, source.pointer, layout))


def _coarser(axes: list[Axis], itemsize: int, addresses: int) -> tuple[list[Axis], int]:
    """Larger elements for the same bytes, where both arrays are contiguous along the last axis → the axes,
    and the size of an element.

    Args:
        addresses: of both arrays, combined by 'or': their alignment.
    """
    if not axes or axes[-1][1:] != (itemsize, itemsize):
        return axes, itemsize
    run = axes[-1].length * itemsize
    marks = [run, addresses, *(stride for axis in axes[:-1] for stride in axis[1:])]
    size = itemsize
    while size < 16 and all(mark % (2 * size) == 0 for mark in marks):
        size *= 2
    return [*axes[:-1], Axis(run // size, size, size)], size


def _integer(dtype: np.dtype[Any]) -> str:
    return f"{dtype.kind}{8 * dtype.itemsize}"


def scale(cupy: Any, array: Array, factor: float) -> None:
    """Multiply a contiguous array by a factor, in place; halves in float32, rounded once."""
    if not array.size:
        return
    assert isinstance(array, DeviceArray)
    parts = 2 if array.dtype.kind == "c" else 1
    name = "bf16" if array.dtype == BFLOAT16 else f"f{8 * array.itemsize // parts}"
    count = array.size * parts
    kernels.launch(cupy, f"scale_{name}", count, (array.pointer, count, float(factor)))


def fold(cupy: Any, rows: Sequence[Array], target: Array, op: ReduceOp) -> None:
    """Reduce rows into a target, the lower rank on the left (law 3). All are contiguous.

    Args:
        op: a bitwise one, of integers or booleans, or PRODUCT of complex numbers: NCCL has the others.
    """
    copy(cupy, target, rows[0])
    assert isinstance(target, DeviceArray)
    if op is ReduceOp.PRODUCT:
        name = f"product_c{8 * target.itemsize}"
    else:
        name = f"{_BITWISE[op]}_{kernels.size_name(target.itemsize)}"
    for row in rows[1:]:
        assert isinstance(row, DeviceArray)
        kernels.launch(cupy, name, target.size, (target.pointer, row.pointer, target.size))


def fill(cupy: Any, task: Task) -> None:
    """Do the copies and the multiplication before an operation."""
    for to, source in task.before:
        copy(cupy, to, source)
    if task.factor is not None and task.source is not None:
        scale(cupy, task.source, task.factor)


def empty(cupy: Any, task: Task) -> None:
    """Do the copies and the last touch after an operation."""
    for to, source in task.after:
        copy(cupy, to, source)
