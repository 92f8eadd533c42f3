"""What tests/gpu and the engine compute with CuPy, on the stand-in: as far as they need it, and no further.

What computes waits for its stream first, and is done at once: the order is that of a device.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.backends.cuda.stand_in import Devices, Tensor

SPIN = 0.03
"""Seconds that a stream is kept busy."""


class Array(Tensor):
    """A CuPy array of a test."""

    def __getitem__(self, key: Any) -> Array:
        part = Array(self.array[key])
        part.data.whole = self  # which owns the memory
        return part

    def __mul__(self, factor: int) -> Array:
        return Array(self.array * factor)

    def sum(self) -> Any:
        return self.array.sum()


def install(devices: Devices) -> None:
    """Add it to the stand-in's modules."""

    def kernel(code: str, name: str) -> Any:
        assert name in code
        return lambda grid, block, given: devices.stack()[-1].give(lambda: time.sleep(SPIN))

    def copyto(to: Any, source: Any) -> None:
        devices.stack()[-1].give(lambda: np.copyto(_memory(to), _memory(source)))

    def asnumpy(tensor: Tensor) -> Any:
        devices.stack()[-1].synchronize()
        return tensor.array.copy()

    def zeros(shape: Any, dtype: Any) -> Tensor:
        made: Tensor = cupy.empty(shape, dtype)
        devices.stack()[-1].give(lambda: made.array.fill(0))
        return made

    cupy: Any = devices.modules["cupy"]
    cupy.__dict__.update(
        ndarray=Array,
        RawKernel=kernel,
        copyto=copyto,
        asnumpy=asnumpy,
        zeros=zeros,
        asarray=lambda array, order="C": Array(np.array(array, order=order)),
        arange=lambda count: Array(np.arange(count)),
        empty_like=lambda other: cupy.empty(other.array.shape, other.dtype),
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
    )
    cupy.cuda.runtime.memGetInfo = lambda: (1 << 30, 1 << 31)


def _memory(given: Any) -> Any:
    return given.array if isinstance(given, Tensor) else given
