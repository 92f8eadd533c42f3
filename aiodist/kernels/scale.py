"""Multiplying an array by a number, in place: what PREMUL_SUM does before it sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.kernels.halves import BLOCK, halves
from aiodist.kernels.quiet import quiet

Array = npt.NDArray[Any]


def scale(array: Array, factor: float) -> None:
    """Multiply `array` (one axis, floating or complex) by `factor`; halves are multiplied in float32 and
    rounded once. Overflow gives infinity, without a warning."""
    quiet.run(_scale, array, factor)


def _scale(array: Array, factor: float) -> None:
    if array.dtype.itemsize > 2:
        np.multiply(array, array.dtype.type(factor), out=array)
        return
    factor32 = np.float32(factor)
    for start in range(0, array.size, BLOCK):
        part = array[start : start + BLOCK]
        wide = halves.widen(part, 0)
        np.multiply(wide, factor32, out=wide)
        halves.narrow(part)
