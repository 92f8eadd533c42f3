"""Collectives of engines that only exchange: what is reduced here, and by whom it is divided."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.foreign import Task
from aiodist.backends.foreign.engine import Done
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from tests.backends.foreign.postbox import PostboxEngine


class Averaging(PostboxEngine):
    """It says that it knows AVG, and has no reduction of its own."""

    name = "averaging"
    averages = True


class Native(PostboxEngine):
    """One whose library has all_reduce, and no AVG; what it is asked for is noted."""

    name = "native"
    asked: ClassVar[list[tuple[int, dist.ReduceOp]]] = []

    def all_reduce(self, task: Task, done: Done) -> None:
        self.asked.append((self.setup.rank, task.reduce))
        self.compose(task, done)

    def reduce(self, task: Task, done: Done) -> None:
        self.asked.append((self.setup.rank, task.reduce))
        self.compose(task, done)


for made in (Averaging, Native):
    dist.register_backend(made.name, made)


@pytest.mark.parametrize("backend", [Averaging.name, Native.name])
@pytest.mark.parametrize("size", [1, 3])
async def test_means(backend: str, size: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        mean = np.arange(4.0) + (pg.size - 1) / 2
        mine = np.arange(4.0) + pg.rank
        assert np.array_equal(await pg.all_reduce(mine.copy(), dist.ReduceOp.AVG), mean)
        result = await pg.reduce(mine.copy(), 0, dist.ReduceOp.AVG)
        assert result is None or np.array_equal(result, mean)
        parts: Any = np.arange(4.0 * pg.size).reshape(pg.size, 4) + pg.rank
        part = await pg.reduce_scatter(parts, op=dist.ReduceOp.AVG)
        assert np.array_equal(part.reshape(-1), mean + 4 * pg.rank)

    await run_cluster(size, main, backend=backend)


@pytest.mark.parametrize("size", [1, 3])
async def test_library_without_a_mean_is_asked_for_a_sum_on_every_rank(size: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.all_reduce(np.arange(4.0), dist.ReduceOp.AVG)
        await pg.reduce(np.arange(4.0), 0, dist.ReduceOp.AVG)
        await pg.reduce(np.arange(4.0), 0, dist.premul_sum(2.0))

    Native.asked.clear()
    await run_cluster(size, main, backend=Native.name)
    assert sorted(Native.asked) == sorted([(rank, dist.ReduceOp.SUM) for rank in range(size)] * 3)
