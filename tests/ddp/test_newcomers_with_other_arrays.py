"""A newcomer with another model: it is refused, and nobody else is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from tests.support.chaos import Chaos

STEPS = 30


def rule(values: np.ndarray, gradient: np.ndarray, state: dict[str, Any]) -> None:
    values += gradient


async def sync(pg: ProcessGroup, count: int) -> list[float]:
    values, step = np.arange(count, dtype=np.float64), np.zeros((), np.int64)
    sync = await dist.GradientSync(pg, [values], elastic=True, state=[step])
    while step < STEPS:
        await asyncio.sleep(0.05)
        sync.ready(0, np.full(count, 1.0 + step))
        if averages := await sync.finish():
            values += averages[0]
            step += 1
    return values.tolist()


async def wrapper(pg: ProcessGroup, count: int) -> list[float]:
    torch = pytest.importorskip("torch")
    module, step = torch.nn.Linear(count, 1, bias=False).double(), torch.zeros((), dtype=torch.int64)
    with torch.no_grad():
        module.weight[0] = torch.arange(count)
    ddp = await dist.DistributedDataParallel(module, pg, elastic=True, state=[step])
    while step < STEPS:
        await asyncio.sleep(0.05)
        ddp.zero_grad()
        ddp(torch.full((count,), 1.0 + int(step), dtype=torch.float64)).sum().backward()
        if await ddp.sync():
            with torch.no_grad():
                module.weight += module.weight.grad
                step += 1
    return module.weight[0].tolist()  # type: ignore[no-any-return]


async def sharded(pg: ProcessGroup, count: int) -> list[float]:
    values = np.arange(count, dtype=np.float64)
    optimizer = await dist.ShardedOptimizer(pg, [values], rule, elastic=True, redundancy=1)
    while optimizer.steps < STEPS:
        await asyncio.sleep(0.05)
        await optimizer.step([np.full(count, 1.0 + optimizer.steps)])
    return values.tolist()


async def diloco(pg: ProcessGroup, count: int) -> list[float]:
    values = np.arange(count, dtype=np.float64)
    diloco = await dist.DiLoCo(pg, [values], sync_every=1, outer_lr=1.0, outer_momentum=0.0, elastic=True)
    while diloco.steps < STEPS:
        await asyncio.sleep(0.05)
        values += 1.0 + diloco.steps
        await diloco.step()
    return values.tolist()


@pytest.mark.parametrize("train", [sync, wrapper, sharded, diloco])
def test_it_is_refused_alone(train: Callable[[ProcessGroup, int], Awaitable[list[float]]]) -> None:
    """Members go on, and so does a newcomer that came in the same moment with the right arrays."""
    if train is wrapper:
        pytest.importorskip("torch")
    chaos, met = Chaos(1), list[tuple[int, int]]()

    async def main(pg: ProcessGroup, count: int = 5) -> list[float]:
        if pg.rank == 0 and pg.epoch == 0:
            loop = asyncio.get_running_loop()
            loop.call_later(0.5, chaos.join, partial(main, count=6), 20.0)
            loop.call_later(0.5, chaos.join, main, 20.0)
        if pg.epoch:
            met.append((pg.epoch, count))
        return await train(pg, count)

    results: list[Any] = run_virtual(run_cluster(2, main, processes=chaos))
    wrong, right = chaos.joined
    assert sorted(met) == [(1, 5), (1, 6)]
    assert [*results, right.result()] == [[at + STEPS * (STEPS + 1) / 2 for at in range(5)]] * 3
    assert isinstance(wrong.exception(), dist.UsageError), wrong.exception()


@pytest.mark.parametrize("train", [sync, wrapper, sharded, diloco])
def test_at_the_very_beginning_all_are(
    train: Callable[[ProcessGroup, int], Awaitable[list[float]]],
) -> None:
    if train is wrapper:
        pytest.importorskip("torch")

    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError):
            await train(pg, 5 + (pg.rank == 2))

    run_virtual(run_cluster(3, main))
