"""Reductions of one array into another, in place.

`reduce_into` is what stands behind every RecvReduce. It allocates nothing that grows with the arrays: the
half precisions are widened to float32 in blocks that stay in the cache, through scratch memory that
each thread keeps.

Where ranks compute the same reduction each for itself they must get the same bits (law 3). So a result
depends on the operands and on which of them is left, and on nothing else: not on which one is `dst`, on
addresses, or on how an array is cut into segments. The one exception are the sign and payload of a NaN
that comes from two NaNs; `finish` makes them one.

What the operations mean where it is not obvious:

* bool: SUM and MAX and BOR are `or`, PRODUCT and MIN and BAND are `and`, BXOR is `xor`, as in NumPy.
* Integers wrap around silently.
* float16 and bfloat16: computed in float32 and rounded to nearest even, once for each call.
* MIN and MAX give NaN where either operand is NaN.
* AVG reduces as SUM; `finish` divides at the end.

All functions release the GIL where NumPy does, and may run in any thread.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.types import BFLOAT16, ReduceOp

Array = npt.NDArray[Any]

BLOCK = 16 * 1024  # elements that are widened at a time: 64 KiB of float32, two of them fit the L2 cache

_FLOAT16 = np.dtype(np.float16)
_UFUNCS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}
_ORDER = (ReduceOp.MIN, ReduceOp.MAX)


class _Scratch(threading.local):
    """Two float32 blocks for each thread; and the table of all float16 values, made at first use."""

    def __init__(self) -> None:
        self.left = np.empty(BLOCK, np.float32)
        self.right = np.empty(BLOCK, np.float32)


_scratch = _Scratch()
_half_values: Array | None = None


def _half_table() -> Array:
    global _half_values  # a constant, made lazily: 256 KiB; two threads that make it make the same
    if _half_values is None:
        _half_values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    return _half_values


def _widen(source: Array, wide: Array) -> None:
    """float16 or bfloat16 to float32. A look-up is twice as fast as NumPy's float16 cast."""
    if source.dtype == _FLOAT16:
        # mode: the default checks bounds through a buffer; 16 bits cannot exceed the table
        np.take(_half_table(), source.view(np.uint16), out=wide, mode="wrap")
    else:
        np.copyto(wide, source)


def reduce_into(dst: Array, src: Array, op: ReduceOp, *, src_left: bool) -> None:
    """`dst = src ∘ dst` if `src_left`, else `dst = dst ∘ src`, element by element.

    Args:
        dst: 1-D array, written in place.
        src: array of the same length and dtype, only read; must not partly overlap `dst`.
        op: the combination; what has no meaning was refused before (`types.check_reduction`).
        src_left: whether `src` is the left operand.
    """
    left, right = (src, dst) if src_left else (dst, src)
    ufunc = _UFUNCS[op]
    if dst.dtype.kind in "biu":
        ufunc(left, right, out=dst)
        return
    # Overflow and NaN are answers here, not news: no RuntimeWarning. (0.9 µs, so not for integers.)
    with np.errstate(all="ignore"):
        if dst.dtype.kind == "c" and op is ReduceOp.PRODUCT:
            _multiply_complex(left, right, dst)
        elif dst.dtype == BFLOAT16 or (dst.dtype == _FLOAT16 and op not in _ORDER):
            _reduce_halves(left, right, dst, ufunc)
        else:
            ufunc(left, right, out=dst)


def _reduce_halves(left: Array, right: Array, dst: Array, ufunc: np.ufunc) -> None:
    for start in range(0, len(dst), BLOCK):
        part = dst[start : start + BLOCK]
        a, b = _scratch.left[: len(part)], _scratch.right[: len(part)]
        _widen(left[start : start + BLOCK], a)
        _widen(right[start : start + BLOCK], b)
        ufunc(a, b, out=a)
        np.copyto(part, a, casting="unsafe")


def _multiply_complex(left: Array, right: Array, dst: Array) -> None:
    """In real steps: NumPy's own product rounds differently where it may use a fused multiply-add, and
    whether it may depends on which operand is overwritten and on the length."""
    for start in range(0, len(dst), BLOCK):
        a, b, part = (array[start : start + BLOCK] for array in (left, right, dst))
        real, imag = a.real * b.real, a.real * b.imag
        real -= a.imag * b.imag
        imag += a.imag * b.real
        part.real, part.imag = real, imag


def finish(dst: Array, op: ReduceOp, size: int, *, one_nan: bool = False) -> None:
    """What remains once all ranks' values are combined: AVG divides by the number of ranks.

    Every rank does this on its own copy, with the same result.

    Args:
        dst: contiguous 1-D array, written in place.
        size: ranks in the group.
        one_nan: also replace every NaN by the same NaN. For schedules in which ranks compute the same
            reduction each for itself (`Schedule.repeats`).
    """
    if op is ReduceOp.AVG and size > 1:
        _divide(dst, size)
    if one_nan and dst.dtype.kind not in "biu":
        parts = dst.view(dst.real.dtype) if dst.dtype.kind == "c" else dst
        nans = np.isnan(parts)
        if nans.any():
            parts[nans] = np.nan


def _divide(dst: Array, size: int) -> None:
    with np.errstate(all="ignore"):
        if dst.dtype != BFLOAT16 and dst.dtype != _FLOAT16:
            np.divide(dst, size, out=dst)
            return
        for start in range(0, len(dst), BLOCK):
            part = dst[start : start + BLOCK]
            wide = _scratch.left[: len(part)]
            _widen(part, wide)
            np.divide(wide, size, out=wide)
            np.copyto(part, wide, casting="unsafe")
