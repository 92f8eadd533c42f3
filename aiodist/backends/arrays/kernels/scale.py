"""Arithmetic of an array and a number, in place: PREMUL_SUM multiplies before it sums, AVG divides after."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist import _engine
from aiodist.backends.arrays.kernels.halves import BLOCK, halves
from aiodist.backends.arrays.kernels.unwarned import unwarned
from aiodist.base.types import DTYPE_CODES

Array = npt.NDArray[Any]


def scale(array: Array, factor: float) -> None:
    """Multiply `array` (one axis, floating or complex) by `factor`; halves are multiplied in float32 and
    rounded once. Overflow gives infinity, without a warning."""
    _with_number(np.multiply, array, factor)


def divide(array: Array, number: float) -> None:
    """Divide `array` by a number; see `scale`."""
    _with_number(np.divide, array, number)


def _with_number(ufunc: np.ufunc, array: Array, number: float) -> None:
    if _engine.compiled is not None and array.dtype.itemsize == 2 and array.flags.carray:
        _engine.compiled.scale_halves(array, DTYPE_CODES[array.dtype], number, ufunc is np.divide)
    else:
        unwarned.run(_by_numpy, ufunc, array, number)


def _by_numpy(ufunc: np.ufunc, array: Array, number: float) -> None:
    if array.dtype.itemsize > 2:
        ufunc(array, array.dtype.type(number), out=array)
        return
    for start in range(0, array.size, BLOCK):
        part = array[start : start + BLOCK]
        wide = halves.widen(part, 0)
        ufunc(wide, np.float32(number), out=wide)
        halves.narrow(part)
