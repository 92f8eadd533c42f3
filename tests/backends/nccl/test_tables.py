"""What goes to NCCL under which number: against the constants of the real library's binding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist.backends.nccl.tables import BYTE, Native, native, wider
from aiodist.base.types import DTYPES, ReduceOp
from aiodist.testing.programs import operations

NAMES = {
    "bool": ("NCCL_UINT8", 1),
    "int8": ("NCCL_INT8", 1),
    "uint8": ("NCCL_UINT8", 1),
    "int32": ("NCCL_INT32", 1),
    "uint32": ("NCCL_UINT32", 1),
    "int64": ("NCCL_INT64", 1),
    "uint64": ("NCCL_UINT64", 1),
    "float16": ("NCCL_FLOAT16", 1),
    "bfloat16": ("NCCL_BFLOAT16", 1),
    "float32": ("NCCL_FLOAT32", 1),
    "float64": ("NCCL_FLOAT64", 1),
    "complex64": ("NCCL_FLOAT32", 2),
    "complex128": ("NCCL_FLOAT64", 2),
}
OPS = {"SUM": "NCCL_SUM", "PRODUCT": "NCCL_PROD", "MIN": "NCCL_MIN", "MAX": "NCCL_MAX", "AVG": "NCCL_AVG"}
BOOL_OPS = {
    **dict.fromkeys(["SUM", "MAX", "BOR"], "NCCL_MAX"),
    **dict.fromkeys(["PRODUCT", "MIN", "BAND"], "NCCL_MIN"),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_reduction_that_has_a_meaning_is_nccls_or_composed(dtype: np.dtype[np.generic]) -> None:
    pytest.importorskip("cupy")
    from cupy.cuda import nccl

    for op in operations(dtype):
        how = native(dtype, op)
        wide = wider(dtype, op)
        if wide is not None:
            assert how is None
            assert native(wide, op) is not None
        elif dtype.name not in NAMES or op.name in ("BAND", "BOR", "BXOR"):
            if dtype == np.bool_ and op is not ReduceOp.BXOR:
                assert how == Native(nccl.NCCL_UINT8, getattr(nccl, BOOL_OPS[op.name]), 1)
            else:
                assert how is None
        elif dtype.kind == "c" and op is ReduceOp.PRODUCT:
            assert how is None
        else:
            name, per_element = NAMES[dtype.name]
            ops = BOOL_OPS if dtype == np.bool_ else OPS
            assert how == Native(getattr(nccl, name), getattr(nccl, ops[op.name]), per_element)


def test_moves_are_bytes() -> None:
    pytest.importorskip("cupy")
    from cupy.cuda import nccl

    assert BYTE == nccl.NCCL_UINT8


def test_averages_are_nccls() -> None:
    averaged = [dtype for dtype in DTYPES if ReduceOp.AVG in operations(dtype)]
    assert len(averaged) == 6
    assert all(native(dtype, ReduceOp.AVG) is not None for dtype in averaged)


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
@pytest.mark.parametrize("op", ["SUM", "PRODUCT", "MIN", "MAX"])
def test_sixteen_bits_are_exact_in_thirty_two(dtype: type, op: str) -> None:
    """Any values of three ranks: the wide result, made narrow, is the narrow result."""
    rng = np.random.default_rng(3)
    info = np.iinfo(dtype)
    rows: Any = rng.integers(info.min, info.max, (3, 5000), endpoint=True).astype(dtype)
    rows[:, :4] = [info.min, info.max, 0, info.max - 1]
    ufunc = {"SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum}[op]
    wide = wider(np.dtype(dtype), ReduceOp[op])
    assert wide is not None
    narrow = ufunc.reduce(rows, axis=0, dtype=dtype)
    assert np.array_equal(ufunc.reduce(rows.astype(wide), axis=0, dtype=wide).astype(dtype), narrow)
