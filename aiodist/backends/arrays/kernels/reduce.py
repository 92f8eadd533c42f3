"""Reductions of one array into another, in place.

`combine` and `reduce_into` carry out every RecvReduce, by the compiled engine where there is one, else by
NumPy. They allocate nothing that grows with the arrays: NumPy's way widens the half precisions to float32 in
blocks that stay in the cache, through scratch memory that each thread keeps.

Where ranks compute the same reduction each for itself they must get the same bits (law 3). So a result
depends on the operands and on which of them is left, and on nothing else: not on whether one is
overwritten, on addresses, on how an array is cut into pieces, or on whether the engine is there. The one
exception are the sign and payload of a NaN, which NumPy chooses; `finish` makes them one.

What the operations mean where it is not obvious:

* bool: SUM and MAX and BOR are `or`, PRODUCT and MIN and BAND are `and`, BXOR is `xor`, as in NumPy.
* Integers wrap around silently.
* float16 and bfloat16: computed in float32 and rounded to nearest even, once for each call.
* MIN and MAX give NaN where either operand is NaN.
* AVG reduces as SUM; `finish` divides at the end.

All functions release the GIL where NumPy and the engine do, and may run in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist import _engine
from aiodist.backends.arrays.kernels.halves import BLOCK, halves
from aiodist.backends.arrays.kernels.scale import divide
from aiodist.backends.arrays.kernels.unwarned import unwarned
from aiodist.base.types import BFLOAT16, DTYPE_CODES, ReduceOp

Array = npt.NDArray[Any]
Combine = Callable[[Array, Array, Array], object]
"""A function that combines two arrays, the left one first, into a third."""

_FLOAT16 = np.dtype(np.float16)
UFUNCS: dict[ReduceOp, np.ufunc] = {  # as they are for all but halves and products of complex numbers
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
_EXACT = frozenset("?bBhHiIlLqQ")  # by dtype.char: what raises no floating-point error
_HALVES = frozenset((_FLOAT16.char, BFLOAT16.char))
_COMPLEX = frozenset("FD")


def combine(left: Array, right: Array, out: Array, op: ReduceOp) -> None:
    """`out = left ∘ right`, element by element.

    Args:
        left, right: 1-D arrays of equal length and dtype, only read.
        out: a third such array, or `left` or `right` itself; must not partly overlap either.
        op: the combination; what has no meaning was refused before (`types.check_reduction`).
    """
    if _engine.compiled is not None and out.dtype in DTYPE_CODES:
        _by_engine(out.dtype, op)(left, right, out)
    else:
        by_numpy(left, right, out, op)


def by_numpy(left: Array, right: Array, out: Array, op: ReduceOp) -> None:
    """`combine` without the engine."""
    char = out.dtype.char
    if char in _EXACT:
        UFUNCS[op](left, right, out=out)
    elif char in _HALVES and not (char == "e" and op in _ORDER):
        unwarned.run(_combine_halves, left, right, out, UFUNCS[op])
    elif char in _COMPLEX and op is ReduceOp.PRODUCT:
        unwarned.run(_multiply_complex, left, right, out)
    else:
        unwarned.run(UFUNCS[op], left, right, out=out)


@cache
def _by_engine(dtype: np.dtype[Any], op: ReduceOp) -> Combine:
    assert _engine.compiled is not None

    def by_copies(left: Array, right: Array, out: Array) -> None:
        """`combine` for arrays that are strided or not aligned: the same loop, and so the same bits."""
        for start in range(0, out.size, BLOCK):
            part = slice(start, start + BLOCK)
            copied = left[part].copy()
            combine_two(copied, right[part].copy(), copied)
            out[part] = copied

    combine_two = _engine.compiled.Combiner(dtype, DTYPE_CODES[dtype], op, by_copies)
    return combine_two


def combiner(dtype: np.dtype[Any], op: ReduceOp, *, in_this_thread: bool = False) -> Combine:
    """`combine` for one dtype and operation, with the choice made: `combine_two(left, right, out)`.

    Args:
        dtype, op: see `combine`.
        in_this_thread: it is called in no other thread, and needs no look at which it is.
    """
    if _engine.compiled is not None:
        return _by_engine(dtype, op)
    ufunc = UFUNCS[op]
    if dtype.char in _HALVES or (dtype.char in _COMPLEX and op is ReduceOp.PRODUCT):
        return partial(by_numpy, op=op)
    if dtype.char in _EXACT:
        return lambda left, right, out: ufunc(left, right, out=out)
    if not in_this_thread:
        return lambda left, right, out: unwarned.run(ufunc, left, right, out=out)
    run = unwarned.run
    if op in _ORDER:
        return lambda left, right, out: run(ufunc, left, right, out=out)  # NumPy wants its name there
    return partial(run, ufunc)


def reduce_in_order(parts: Sequence[Array], out: Array, combine_two: Combine) -> None:
    """Reduce several arrays into `out`, which is none of them: the lower rank on the left (law 3)."""
    combine_two(parts[0], parts[1], out)
    if len(parts) > 2:
        for part in parts[2:]:
            combine_two(out, part, out)


def reduce_into(dst: Array, src: Array, op: ReduceOp, *, src_left: bool) -> None:
    """`dst = src ∘ dst` if `src_left`, else `dst = dst ∘ src`; see `combine`."""
    if src_left:
        combine(src, dst, dst, op)
    else:
        combine(dst, src, dst, op)


def _combine_halves(left: Array, right: Array, out: Array, ufunc: np.ufunc) -> None:
    for start in range(0, out.size, BLOCK):
        part = slice(start, start + BLOCK)
        a, b = halves.widen(left[part], 0), halves.widen(right[part], 1)
        ufunc(a, b, out=a)
        halves.narrow(out[part])


def _multiply_complex(left: Array, right: Array, out: Array) -> None:
    """Multiply in real steps: NumPy's own product rounds differently where it may use a fused multiply-add,
    and whether it may depends on which operand is overwritten and on the length."""
    for start in range(0, len(out), BLOCK):
        a, b, part = (array[start : start + BLOCK] for array in (left, right, out))
        real, imag = a.real * b.real, a.real * b.imag
        real -= a.imag * b.imag
        imag += a.imag * b.real
        part.real, part.imag = real, imag


def finish(dst: Array, op: ReduceOp, size: int, *, one_nan: bool = False) -> None:
    """Apply the last step once all ranks' values are combined: AVG divides by the number of ranks.

    Every rank does this on its own copy, with the same result.

    Args:
        dst: contiguous 1-D array, written in place.
        size: ranks in the group.
        one_nan: also replace every NaN by the same NaN. For schedules in which ranks compute the same
            reduction each for itself (`Schedule.repeats`).
    """
    if op is ReduceOp.AVG and size > 1:
        divide(dst, size)
    if one_nan and dst.dtype.kind not in "biu" and dst.size:
        parts = dst.view(dst.real.dtype) if dst.dtype.kind == "c" else dst
        if _any_nan(parts):
            parts[np.isnan(parts)] = np.nan


def _any_nan(array: Array) -> bool:
    """Whether there is a NaN, found without an array of booleans: of 64 MiB that one would take longer than
    the look at the values."""
    if array.dtype.char in _HALVES:
        infinity = np.array(np.inf, array.dtype).view(np.uint16)
        negative = np.maximum.reduce(array.view(np.uint16)) > infinity | 0x8000
        return bool(negative or np.maximum.reduce(array.view(np.int16)) > infinity)
    return bool(np.isnan(np.maximum.reduce(array)))
