"""MPI's names for dtypes and reductions, as in `mpi4py.MPI`; tags; pieces of what is large. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from aiodist.base.types import BFLOAT16, ReduceOp

LARGEST = 2**30
"""Elements that one call gets at most: counts are 32-bit integers where MPI is older than 4."""

EXCHANGE_TAG = 0
"""The tag of exchanges, which match in their order. Messages have the tags above."""

_TYPES = {
    "bool": "UINT8_T",
    "uint8": "UINT8_T",
    "int8": "INT8_T",
    "uint16": "UINT16_T",
    "int16": "INT16_T",
    "uint32": "UINT32_T",
    "int32": "INT32_T",
    "uint64": "UINT64_T",
    "int64": "INT64_T",
    "float16": "UINT16_T",
    "bfloat16": "UINT16_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}
_OPS = {
    ReduceOp.SUM: "SUM",
    ReduceOp.PRODUCT: "PROD",
    ReduceOp.MIN: "MIN",
    ReduceOp.MAX: "MAX",
    ReduceOp.BAND: "BAND",
    ReduceOp.BOR: "BOR",
    ReduceOp.BXOR: "BXOR",
}
_BOOL_OPS = {  # on bytes that are 0 or 1; as NumPy has them
    ReduceOp.SUM: "MAX",
    ReduceOp.MAX: "MAX",
    ReduceOp.BOR: "MAX",
    ReduceOp.PRODUCT: "MIN",
    ReduceOp.MIN: "MIN",
    ReduceOp.BAND: "MIN",
    ReduceOp.BXOR: "BXOR",
}
_HALVES = (np.dtype(np.float16), BFLOAT16)
_SMALL = 2  # bytes of the integers whose sums are not wrapped around everywhere


def datatype(dtype: np.dtype[Any]) -> str:
    """The MPI datatype of elements. Halves are 16 bits to move; to be reduced they are widened first."""
    return _TYPES[dtype.name]


def operator(op: ReduceOp, dtype: np.dtype[Any]) -> str:
    """The reduction for elements of a dtype. AVG and PREMUL_SUM are SUM here."""
    return (_BOOL_OPS if dtype.kind == "b" else _OPS)[op]


def wide(op: ReduceOp, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype to which elements are widened to be reduced; None where they are reduced as they are.

    MPI has no arithmetic for halves. Sums of integers wrap around (docs/algorithms.md), but MPI says nothing
    of that, and Open MPI saturates the small ones (open-mpi/ompi#8045).
    """
    if dtype in _HALVES:
        return np.dtype(np.float32)
    if op is ReduceOp.SUM and dtype.kind in "iu" and dtype.itemsize <= _SMALL:
        return np.dtype(np.uint32)  # modulo 2³², so modulo 2⁸ and 2¹⁶ too, whatever the sign
    return None


def message_tag(number: int, highest: int) -> int:
    """The tag of a pair's message. Those with one tag match in their order, `highest` messages apart.

    Args:
        number: counts the pair's messages.
        highest: of the tags that the library has (MPI_TAG_UB).
    """
    return 1 + number % highest


def group_tag(context: int, highest: int) -> int:
    """The tag under which a group's members make its communicator."""
    return context % (highest + 1)


def pieces(count: int, most: int) -> list[slice]:
    """The pieces of `count` elements, of at most `most` each; none for none."""
    return [slice(start, min(start + most, count)) for start in range(0, count, most)]
