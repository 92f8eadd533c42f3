"""One rank of a job in which rank 1 leaves the compiled engine aside."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

if os.environ["RANK"] == "1":
    os.environ["AIODIST_ENGINE"] = "python"

import aiodist as dist

FLOATS = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float64)]
DTYPES = [*FLOATS, np.dtype(np.int16)]


def values(dtype: np.dtype[Any], count: int, rank: int) -> npt.NDArray[Any]:
    """Distinct numbers by rank, with zeros of both signs and NaNs among them where the dtype has some."""
    array = (np.random.default_rng(7 + rank).normal(size=count) * 100).astype(dtype)
    if dtype in FLOATS:
        array[rank::5] = -0.0
        array[3 + rank :: 7] = np.nan
    return array


def expected(dtype: np.dtype[Any], count: int, op: dist.ReduceOp) -> npt.NDArray[Any]:
    """The result as NumPy computes it: in float64, whose sums of halves are exact, and rounded once."""
    left, right = (values(dtype, count, rank).astype(np.float64) for rank in (0, 1))
    reduce = {dist.ReduceOp.SUM: np.add, dist.ReduceOp.MIN: np.minimum, dist.ReduceOp.MAX: np.maximum}[op]
    found: npt.NDArray[Any] = reduce(left, right).astype(dtype)
    return found


async def main() -> None:
    async with await dist.init_process_group() as pg:
        for dtype in DTYPES:
            for count in (3, 5000, 300_000):
                for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
                    mine = values(dtype, count, pg.rank)
                    await pg.all_reduce(mine, op)
                    wide, want = mine.astype(np.float64), expected(dtype, count, op).astype(np.float64)
                    assert np.array_equal(wide, want, equal_nan=True), (dtype, count, op)
                    rows = await pg.all_gather(mine.view(np.uint8))
                    assert np.array_equal(*rows), (dtype, count, op)  # the same bits, also of a NaN
    print("alike")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main())
