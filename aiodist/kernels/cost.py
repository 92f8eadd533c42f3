"""How long a reduction holds its thread, roughly: what to run off the event loop (law 7).

The rates were measured with `reduce_into` on one core of a 2-core x86-64 cloud machine (NumPy 2.4,
ml_dtypes 0.5): native dtypes ran at 20-34 GB/s with both operands in the cache and 12-25 GB/s from
memory whatever the operation, bfloat16 at 1.6-2.3, float16 at 0.44-0.48, its MIN and MAX at 1.0. The
table holds the low ends. It serves decisions where a factor of two is no harm.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aiodist.types import BFLOAT16, ReduceOp

CALL_NS = 2000.0  # of a call on a few native elements
CACHED_NBYTES = 512 * 1024  # of dst, up to which both operands tend to be in the cache

_FLOAT16 = np.dtype(np.float16)


def cost_ns(nbytes: int, dtype: np.dtype[Any], op: ReduceOp) -> float:
    """Estimated nanoseconds of `reduce_into` with a `dst` of `nbytes`."""
    if dtype == BFLOAT16:
        rate = 1.6
    elif dtype == _FLOAT16:
        rate = 1.0 if op in (ReduceOp.MIN, ReduceOp.MAX) else 0.44
    else:
        rate = 20.0 if nbytes <= CACHED_NBYTES else 12.0
    return CALL_NS + nbytes / rate  # bytes / (GB/s) = ns
