"""The full group code against NumPy, over memory channels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.base.errors import CollectiveMismatch
from aiodist.base.types import ReduceOp
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from aiodist.testing.conformance_backend import check_backend, check_concurrent, check_program
from aiodist.transport.memory import MemoryNetwork
from tests.levels import COSTLY, few


@pytest.mark.parametrize("size", few(range(1, 9), [1, 3]))
async def test_conformance_over_memory(size: int) -> None:
    await run_cluster(size, lambda pg: check_backend(pg, seed=size))


@pytest.mark.slow(COSTLY)
@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 8), seed=st.integers(0, 2**32))
def test_random_programs_equal_numpy(size: int, seed: int) -> None:
    run_virtual(run_cluster(size, lambda pg: check_program(pg, seed, 12)))


@pytest.mark.slow(COSTLY)
@settings(max_examples=20, deadline=None)
@given(size=st.integers(2, 6), seed=st.integers(0, 2**32))
def test_random_programs_all_at_once_over_a_slow_network(size: int, seed: int) -> None:
    delays = np.random.default_rng(seed)
    network = MemoryNetwork(delay=lambda src, dst: float(delays.exponential(0.001)))
    run_virtual(run_cluster(size, lambda pg: check_concurrent(pg, seed, 12), network=network))


async def test_strided_input_is_staged_and_written_back() -> None:
    async def main(pg: ProcessGroup) -> None:
        wide = np.zeros((4, 6), np.int32)
        column = wide[:, 2]
        column[:] = np.arange(4) + 10 * pg.rank
        await pg.all_reduce(column)
        assert list(column) == [30, 33, 36, 39]
        wide[:, 2] = 0
        assert not wide.any()  # nothing beside the column was touched

    await run_cluster(3, main)


async def test_out_keeps_the_input_and_may_be_read_only() -> None:
    async def main(pg: ProcessGroup) -> None:
        tensor = np.arange(5.0) * (pg.rank + 1)
        tensor.flags.writeable = False
        out = np.zeros(5)
        assert await pg.all_reduce(tensor, out=out) is out
        assert np.array_equal(out, np.arange(5.0) * 6)
        assert np.array_equal(tensor, np.arange(5.0) * (pg.rank + 1))

    await run_cluster(3, main)


async def test_avg_divides_by_ranks_not_elements() -> None:
    async def main(pg: ProcessGroup) -> None:
        tensor = np.array([1.0, 2.0, 9.0]) * (pg.rank + 1)
        await pg.all_reduce(tensor, ReduceOp.AVG)
        assert np.array_equal(tensor, np.array([2.5, 5.0, 22.5]))

    await run_cluster(4, main)


SIZES = [3, 0, 4]


async def test_parts_of_different_sizes() -> None:
    async def main(pg: ProcessGroup) -> None:
        mine = np.arange(SIZES[pg.rank] * 2.0).reshape(-1, 2) + 100 * pg.rank
        whole = np.concatenate([np.arange(n * 2.0).reshape(-1, 2) + 100 * r for r, n in enumerate(SIZES)])
        got = await pg.all_gather(mine, sizes=SIZES)
        assert np.array_equal(got, whole)
        out = np.zeros((7, 2))
        assert await pg.all_gather(mine, out, SIZES) is out
        assert np.array_equal(out, whole)
        ends = np.cumsum([0, *SIZES])
        part = await pg.reduce_scatter(whole * (pg.rank + 1), sizes=SIZES)
        assert np.array_equal(part, whole[ends[pg.rank] : ends[pg.rank + 1]] * 6)
        mean = await pg.reduce_scatter(whole + pg.rank, op=ReduceOp.AVG, sizes=SIZES)
        assert np.array_equal(mean, whole[ends[pg.rank] : ends[pg.rank + 1]] + 1)

    await run_cluster(3, main)


async def test_ranks_that_give_other_sizes_are_told_so() -> None:
    async def main(pg: ProcessGroup) -> None:
        sizes = [2, 1] if pg.rank == 0 else [1, 2]
        with pytest.raises(CollectiveMismatch, match=r"sizes=\[1, 2\].*|sizes=\[2, 1\].*"):
            await pg.all_gather(np.zeros(sizes[pg.rank]), sizes=sizes)

    await run_cluster(2, main)
