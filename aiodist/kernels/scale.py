"""Multiplying an array by a number, in place: what PREMUL_SUM does before it sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 32 * 1024  # elements of float32 scratch: 128 KiB, which stays in the cache


def scale(array: npt.NDArray[Any], factor: float) -> None:
    """Multiply `array` (one axis, floating or complex) by `factor`; halves are multiplied in float32 and
    rounded once. Overflow gives infinity, without a warning."""
    with np.errstate(all="ignore"):
        if array.dtype.itemsize > 2:
            np.multiply(array, array.dtype.type(factor), out=array)
            return
        for start in range(0, array.size, BLOCK):
            part = array[start : start + BLOCK]
            part[...] = part.astype(np.float32) * np.float32(factor)
