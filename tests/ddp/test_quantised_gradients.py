"""GradientSync with a codec: averages near the exact ones, feedback, plans that differ, values not finite."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import CollectiveMismatch, NonFiniteValues, UsageError
from aiodist.ddp import GradientSync
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from tests.levels import COSTLY, few
from tests.support.chaos import Chaos, Crashed
from tests.support.late_jobs import late_jobs

SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((30, 4), np.float32),
    ((7,), np.float64),
    ((300,), np.float32),
    ((3,), np.complex64),
]


def on_all(size: int, part: Callable[[ProcessGroup], Awaitable[Any]]) -> list[Any]:
    return run_virtual(run_cluster(size, part))


def gradients(rank: int) -> list[Any]:
    rng = np.random.default_rng(rank)
    return [rng.standard_normal(shape).astype(dtype) for shape, dtype in SHAPES]


async def step(sync: GradientSync, given: list[Any]) -> list[Any]:
    for index, gradient in reversed(list(enumerate(given))):
        sync.ready(index, gradient)
    return [np.array(average) for average in await sync.finish()]


def arrays() -> list[Any]:
    return [np.zeros(shape, dtype) for shape, dtype in SHAPES]


@pytest.mark.slow(COSTLY)
def test_the_mean_over_many_steps_is_exact() -> None:
    async def part(pg: ProcessGroup) -> list[Any]:
        sync = await GradientSync(pg, arrays(), 1e-4, codec="int4")
        totals = [np.zeros(shape, dtype) for shape, dtype in SHAPES]
        for _ in range(50):
            for total, average in zip(totals, await step(sync, gradients(pg.rank)), strict=True):
                total += average
        return totals

    results = on_all(3, part)
    for index in range(len(SHAPES)):
        exact = np.mean([gradients(rank)[index] for rank in range(3)], axis=0)
        assert len({result[index].tobytes() for result in results}) == 1
        assert np.abs(results[0][index] / 50 - exact).max() < 0.02  # one step is wrong by up to 0.3


def test_ranks_must_have_the_same_buckets() -> None:
    async def part(pg: ProcessGroup) -> None:
        sync = await GradientSync(pg, [np.zeros(40, np.float32), np.zeros(40, np.float32)], codec="int8")
        sync._plan += " another" * pg.rank
        with pytest.raises(CollectiveMismatch, match="buckets int8/1024"):
            await step(sync, [np.ones(40, np.float32), np.ones(40, np.float32)])

    on_all(2, part)


def test_a_step_that_is_not_finite_is_skipped_by_all() -> None:
    async def part(pg: ProcessGroup) -> Any:
        sync = await GradientSync(pg, arrays(), 1e-4, codec="int8")
        await step(sync, gradients(pg.rank))
        left = [None if one.error is None else one.error.copy() for one in sync._feedback]
        broken = gradients(pg.rank)
        if pg.rank == 1:
            broken[2][5] = np.nan
        with pytest.raises(NonFiniteValues, match="rank 1"):
            await step(sync, broken)
        for feedback, before in zip(sync._feedback, left, strict=True):
            assert (before is None) == (feedback.error is None)
            assert before is None or np.array_equal(before, np.array(feedback.error))
        return await step(sync, gradients(pg.rank))

    first, second = on_all(2, part)
    exact = np.mean([gradients(rank)[2] for rank in range(2)], axis=0)
    assert np.abs(first[2] - exact).max() < 0.1
    assert first[2].tobytes() == second[2].tobytes()


def test_a_codec_that_there_is_not() -> None:
    async def part(pg: ProcessGroup) -> None:
        with pytest.raises(UsageError, match="codec must be"):
            GradientSync(pg, [], codec="fp8")
        await pg.barrier()

    on_all(2, part)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("codec", few(["int8", "int4"], ["int8"]))
def test_a_death_in_a_step_ends_no_survivor(codec: str) -> None:
    """Some buckets are still being encoded when the first one fails, and when all members know it."""
    counts, steps, died = (30, 28, 40), 2, 0  # a bucket each
    top = {"int8": 127.0, "int4": 7.0}[codec]  # so that nothing is rounded

    for moment in itertools.count(1):
        chaos = Chaos(moment)

        async def part(pg: ProcessGroup, chaos: Chaos = chaos, moment: int = moment) -> list[list[float]]:
            values, step = [np.zeros(count, np.float32) for count in counts], np.zeros((), np.int64)
            sync = await GradientSync(pg, values, 1e-4, elastic=True, state=[step], codec=codec)
            if pg.rank == 2:
                asyncio.get_running_loop().call_later(moment / 100, chaos.crash, 2)
            while step < steps:
                await asyncio.sleep(0.01)  # the program computes; the group may break meanwhile
                for index, count in enumerate(counts):
                    sync.ready(index, np.full(count, top * (index + 1 + step), np.float32))
                if averages := await sync.finish():
                    for value, average in zip(values, averages, strict=True):
                        value += average
                    step += 1
            return [value.tolist() for value in values]

        with late_jobs(0.005):
            results: list[Any] = run_virtual(run_cluster(3, part, processes=chaos, return_exceptions=True))
        wanted = [[top * (steps * (index + 1) + 1)] * count for index, count in enumerate(counts)]
        for result in results:
            assert isinstance(result, Crashed) or result == wanted, f"rank 2 dies at moment {moment}"
        if results[2] == wanted:
            break
        died += 1
    assert died > 5
