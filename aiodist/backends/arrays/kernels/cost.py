"""The estimated time for which a reduction holds its thread: what to run off the event loop (law 7).

The rates were measured with `combine` on one core of 2-core x86-64 cloud machines (NumPy 2.4, ml_dtypes 0.5),
in GB/s of `dst`: native dtypes ran at 20-45 with both operands in the cache and 12-25 from memory whatever
the operation, with the engine as without. Halves run at 6-9 with the engine; without it float16 at 0.5-0.8,
its MIN and MAX at 1.0, and bfloat16 at 1.6-2.4. The table holds the low ends. It serves decisions where a
factor of two is no harm. Ranks that share memory have the same engine, so they get the same answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aiodist import _engine
from aiodist.base.types import BFLOAT16, ReduceOp

INLINE_NS = 200_000.0
"""The longest time on the loop in one go (law 7). Handing a job to a thread and back costs 25 µs on uvloop,
so much less than this would not pay."""

CALL_NS = 2000.0  # of a call on a few elements, native or half
CACHED_NBYTES = 512 * 1024  # of dst, up to which both operands tend to be in the cache

_FLOAT16 = np.dtype(np.float16)

COPY_BYTES_PER_NS = 8.0
"""The rate of a copy in cache-cold memory: 8 GB/s."""


def copy_cost_ns(nbytes: int) -> float:
    """Estimated nanoseconds of a copy of so many bytes."""
    return nbytes / COPY_BYTES_PER_NS


def cost_ns(nbytes: int, dtype: np.dtype[Any], op: ReduceOp) -> float:
    """Estimated nanoseconds of `combine` with an `out` of `nbytes`; as SUM, also of `finish` and `scale`.

    Args:
        nbytes: of `out`.
        dtype: of the elements.
        op: the combination.
    """
    if dtype in (BFLOAT16, _FLOAT16):
        rate = 6.0 if _engine.compiled is not None else _half_rate_of_numpy(dtype, op)
    else:
        rate = 20.0 if nbytes <= CACHED_NBYTES else 12.0
    return CALL_NS + nbytes / rate  # bytes / (GB/s) = ns


def _half_rate_of_numpy(dtype: np.dtype[Any], op: ReduceOp) -> float:
    if dtype == BFLOAT16:
        return 1.6
    return 1.0 if op in (ReduceOp.MIN, ReduceOp.MAX) else 0.5
