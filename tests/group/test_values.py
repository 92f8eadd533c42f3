"""What cannot be written comes back as a new value: numbers, NumPy's scalars, read-only and JAX arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster


def same(got: Any, expected: Any) -> None:
    """Check value, type and dtype."""
    assert type(got) is type(expected), (got, expected)
    assert np.array_equal(got, expected)
    assert np.asarray(got).dtype == np.asarray(expected).dtype


class Frozen:
    """An array of a library of which NumPy knows nothing but DLPack, and that cannot be written."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.values.flags.writeable = False

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def frozen(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values.flags.writeable = False
    return values


async def test_reductions_of_numbers() -> None:
    async def main(pg: ProcessGroup) -> None:
        rank = pg.rank
        same(await pg.all_reduce(3.5 + rank), 8.0)
        same(await pg.all_reduce(3 + rank), 7)
        same(await pg.all_reduce(2**62 * rank), 2**62)
        same(await pg.all_reduce(rank == 0, op=dist.ReduceOp.BAND), False)
        same(await pg.all_reduce(rank + 2j), 1 + 4j)
        same(await pg.all_reduce(np.float32(rank + 1)), np.float32(3))
        same(await pg.all_reduce((np.ones(3) * (rank + 1)).sum()), np.float64(9))
        same(await pg.all_reduce(np.full((), rank + 1.0)), np.array(3.0))  # written in place, as ever
        same(await pg.all_reduce(rank + 1.0, op=dist.ReduceOp.AVG), 1.5)
        same(await pg.all_reduce(rank + 1.0, out=np.zeros(())), np.array(3.0))
        same(await pg.all_reduce(rank + 1, timeout=60), 3)
        same(await pg.reduce(rank + 1, dst=1), 3 if rank else None)
        same(await dist.all_reduce(rank + 1, group=pg), 3)

    await run_cluster(2, main)


async def test_numbers_from_rank_to_rank() -> None:
    async def main(pg: ProcessGroup) -> None:
        rank = pg.rank
        same(await pg.broadcast(rank + 0.5, src=1), 1.5)
        same(await pg.all_gather(rank + 5), [5, 6])
        same(await pg.all_gather(np.float32(rank)), np.array([0, 1], np.float32))
        same(await pg.gather(rank == 1, dst=0), None if rank else [False, True])
        same(await pg.scatter(0.0, None if rank else np.array([5.0, 6.0])), 5.0 + rank)
        box = np.zeros(())
        if rank == 0:
            await pg.send(2.5, 1)
        else:
            await pg.recv(box, 0)
            assert box == 2.5

    await run_cluster(2, main)


@pytest.mark.parametrize("make", [frozen, Frozen])
async def test_what_is_read_only_stays_and_the_result_is_new(make: Any) -> None:
    async def main(pg: ProcessGroup) -> None:
        mine = np.arange(4.0) + 10 * pg.rank
        given = make(mine.copy())
        same(await pg.all_reduce(given), 2 * np.arange(4.0) + 10)
        got = await pg.broadcast(given, src=1)
        assert (got is given) == (pg.rank == 1)  # who has it keeps it
        same(np.from_dlpack(got), np.arange(4.0) + 10)
        same(await pg.all_to_all(given), np.arange(2.0).repeat(2) * 0 + await pg.all_to_all(mine.copy()))
        same(await pg.reduce_scatter(given), (2 * np.arange(4.0) + 10)[2 * pg.rank :][:2])
        assert np.array_equal(np.from_dlpack(given), mine)

    await run_cluster(2, main)


async def test_arrays_of_jax() -> None:
    jax = pytest.importorskip("jax", reason="JAX's arrays")
    numpy = jax.numpy

    async def main(pg: ProcessGroup) -> None:
        rank = pg.rank
        given = numpy.arange(4) + 10 * rank
        for got, expected in (
            (await pg.all_reduce(given), 2 * numpy.arange(4) + 10),
            (await pg.all_reduce(given.sum()), (2 * numpy.arange(4) + 10).sum()),
            (await pg.broadcast(given, src=1), numpy.arange(4) + 10),
            (await pg.all_gather(given), numpy.stack([numpy.arange(4), numpy.arange(4) + 10])),
            (await pg.reduce_scatter(given), (2 * numpy.arange(4) + 10)[2 * rank :][:2]),
        ):
            assert isinstance(got, jax.Array)
            same(got, expected)

    await run_cluster(2, main)


async def test_ranks_that_disagree_are_told_which_number_they_passed() -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.CollectiveMismatch, match=r"a single float64.*a single int64"):
            await pg.all_reduce(3 if pg.rank else 3.5)

    await run_cluster(2, main)


async def test_what_is_refused() -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError, match="more than 64 bits"):
            pg.all_reduce(2**63)
        with pytest.raises(dist.UsageError, match="single float, which cannot be written"):
            pg.recv(0.0, 1 - pg.rank)
        with pytest.raises(dist.UsageError, match="out is a single int"):
            pg.all_reduce(1.5, out=3)
        assert pg.issued_count() == 1

    await run_cluster(2, main)
