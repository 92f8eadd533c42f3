"""Device memory: CuPy's arrays on that of tensors, new memory, copies and factors, on the current stream.

What a function here gives the device goes to CuPy's current stream of the thread, in order.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.foreign.task import Task
from aiodist.tensors.device import DeviceArray, geometry
from aiodist.types import BFLOAT16

_UINT16 = np.dtype(np.uint16)


def on_device(cupy: Any, array: Array) -> Any:
    """A `cupy.ndarray` on the same memory; bfloat16 as uint16, which not every CuPy knows."""
    assert isinstance(array, DeviceArray)
    low, nbytes = extent(array)
    memory = cupy.cuda.UnownedMemory(low, nbytes, array.source, array.cuda)
    pointer = cupy.cuda.MemoryPointer(memory, array.pointer - low)
    dtype = _UINT16 if array.dtype == BFLOAT16 else array.dtype
    return cupy.ndarray(array.shape, dtype, pointer, array.strides)


def extent(array: DeviceArray) -> tuple[int, int]:
    """Address of the lowest byte of an array, and the bytes from there to the highest."""
    if not array.size:
        return array.pointer, 0
    low = high = array.pointer
    for count, stride in zip(array.shape, array.strides, strict=True):
        span = (count - 1) * stride
        if span < 0:
            low += span
        else:
            high += span
    return low, high + array.itemsize - low


def allocate(cupy: Any, device: int, count: int, dtype: np.dtype[Any]) -> DeviceArray:
    """New memory of the current device, uninitialised. It goes back to the current stream, which may give it
    away before what uses it is over on another stream."""
    memory = cupy.empty(count * dtype.itemsize, np.uint8)
    return geometry(memory.data.ptr, (count,), None, dtype, device, memory)


def copy(cupy: Any, to: Array, source: Array) -> None:
    """`to[...] = source`; same shape, any strides. Integers are converted, modulo what `to` can hold."""
    if prod(to.shape):
        cupy.copyto(on_device(cupy, to), on_device(cupy, source))


def scale(cupy: Any, array: Array, factor: float) -> None:
    """Multiply by a factor, in place; halves in float32, rounded once."""
    if not array.size:
        return
    values = on_device(cupy, array)
    if array.dtype == BFLOAT16:
        narrow_bfloat16(cupy, widen_bfloat16(cupy, values) * np.float32(factor), values)
    elif array.dtype.itemsize == 2:
        values[...] = (values.astype(np.float32) * np.float32(factor)).astype(values.dtype)
    else:
        values *= array.dtype.type(factor)


def widen_bfloat16(xp: Any, bits: Any) -> Any:
    """Float32 of the bits of bfloat16. `xp` is CuPy, or NumPy."""
    return (bits.astype(xp.uint32) << np.uint32(16)).view(xp.float32)


def narrow_bfloat16(xp: Any, wide: Any, out: Any) -> None:
    """The bits of the nearest bfloat16 of float32, ties to even."""
    bits = wide.view(xp.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    out[...] = xp.where(xp.isnan(wide), np.uint32(0x7FC0), rounded).astype(xp.uint16)


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
