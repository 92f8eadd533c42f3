"""float16 and bfloat16 reduce in float32 and round once a hop: the error stays within the stated bound."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.base.types import ReduceOp
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from tests.levels import few

# Half a unit in the last place, relative: 2^-11 and 2^-8.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
TINY = {"float16": 2.0**-25, "bfloat16": 2.0**-134}  # half of the smallest subnormal


@pytest.mark.parametrize("name", few(["float16", "bfloat16"], ["bfloat16"]))
@settings(max_examples=15, deadline=None)
@given(size=st.integers(2, 8), count=st.sampled_from([1, 100, 5_000, 40_000]), seed=st.integers(0, 2**32))
def test_sum_is_within_one_rounding_a_hop(name: str, size: int, count: int, seed: int) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)

    def tensor(rank: int) -> Any:
        rng = np.random.default_rng([seed, rank])
        return (rng.standard_normal(count) * 10.0 ** rng.integers(-2, 3, count)).astype(dtype)

    exact = sum(tensor(rank).astype(np.float64) for rank in range(size))
    weight = sum(np.abs(tensor(rank).astype(np.float64)) for rank in range(size))
    bound = (size - 1) * (ROUNDING[name] * (1 + 2.0**-7) ** size * weight + TINY[name])

    async def main(pg: ProcessGroup) -> None:
        mine = tensor(pg.rank)
        await pg.all_reduce(mine)
        assert np.all(np.abs(mine.astype(np.float64) - exact) <= bound)
        mine = tensor(pg.rank)
        await pg.all_reduce(mine, ReduceOp.AVG)
        error = np.abs(mine.astype(np.float64) - exact / size)
        assert np.all(error <= bound / size + ROUNDING[name] * 2 * weight / size + TINY[name])

    run_virtual(run_cluster(size, main))


async def test_a_sum_that_is_exact_in_float32_alone() -> None:
    """Naive adds in bfloat16 lose every 1 after 256; by hops over ranks at most one rounding is lost each."""

    async def main(pg: ProcessGroup) -> None:
        mine = np.full(3, 256 if pg.rank == 0 else 1, ml_dtypes.bfloat16)
        await pg.all_reduce(mine)
        assert abs(float(mine[0]) - (256 + pg.size - 1)) <= 2 * (pg.size - 1)

    await run_cluster(4, main)
