"""NCCL's constants for our dtypes and reductions, where it has them. Pure: they are part of its ABI."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aiodist.base.types import BFLOAT16, ReduceOp

BYTE = 1
"""NCCL_UINT8, for what is only moved: it goes as bytes."""

_CODES: dict[np.dtype[np.generic], tuple[int, int]] = {  # dtype → NCCL's, and how many of it make an element
    np.dtype(np.bool_): (1, 1),
    np.dtype(np.int8): (0, 1),
    np.dtype(np.uint8): (1, 1),
    np.dtype(np.int32): (2, 1),
    np.dtype(np.uint32): (3, 1),
    np.dtype(np.int64): (4, 1),
    np.dtype(np.uint64): (5, 1),
    np.dtype(np.float16): (6, 1),
    np.dtype(np.float32): (7, 1),
    np.dtype(np.float64): (8, 1),
    BFLOAT16: (9, 1),
    np.dtype(np.complex64): (7, 2),
    np.dtype(np.complex128): (8, 2),
}
SUM, _PRODUCT, _MAX, _MIN, _AVG = 0, 1, 2, 3, 4
_OPS = {
    ReduceOp.SUM: SUM,
    ReduceOp.PRODUCT: _PRODUCT,
    ReduceOp.MAX: _MAX,
    ReduceOp.MIN: _MIN,
    ReduceOp.AVG: _AVG,
}
_BOOL_OPS = {  # of bytes that are 0 or 1
    ReduceOp.SUM: _MAX,
    ReduceOp.MAX: _MAX,
    ReduceOp.BOR: _MAX,
    ReduceOp.PRODUCT: _MIN,
    ReduceOp.MIN: _MIN,
    ReduceOp.BAND: _MIN,
}
_WIDER: dict[np.dtype[np.generic], np.dtype[np.generic]] = {
    np.dtype(np.int16): np.dtype(np.int32),
    np.dtype(np.uint16): np.dtype(np.uint32),
}


class Native(NamedTuple):
    """A reduction as NCCL has it.

    Attributes:
        dtype: NCCL's.
        op: NCCL's.
        per_element: how many of `dtype` make an element: 2 for complex numbers.
    """

    dtype: int
    op: int
    per_element: int


def native(dtype: np.dtype[np.generic], op: ReduceOp) -> Native | None:
    """A reduction as NCCL has it; None for bitwise ones, products of complex numbers, and 16-bit integers."""
    if dtype not in _CODES:
        return None
    code, per_element = _CODES[dtype]
    ops = _BOOL_OPS if dtype == np.bool_ else _OPS
    if op not in ops or (per_element == 2 and op is ReduceOp.PRODUCT):
        return None
    return Native(code, ops[op], per_element)


def wider(dtype: np.dtype[np.generic], op: ReduceOp) -> np.dtype[np.generic] | None:
    """The dtype in which NCCL can reduce one that it has not, exactly once it is made narrow again."""
    return _WIDER.get(dtype) if op in _OPS else None
