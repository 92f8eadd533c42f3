"""ShardedOptimizer in simulated time: a member dies at any moment, and a newcomer comes at any."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import RendezvousTimeout
from aiodist.ddp import ShardedOptimizer
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from tests.levels import MORE, few
from tests.support.chaos import Chaos, Crashed

STEPS, ITEMS = 12, 60


def momentum(values: np.ndarray, gradient: np.ndarray, state: dict[str, Any]) -> None:
    state["count"] = state.get("count", 0) + 1
    velocity = state.setdefault("velocity", np.zeros_like(values))
    velocity += gradient - velocity / 4
    values -= velocity / (8 * state["count"])


def gradients(step: int, rank: int, size: int) -> list[np.ndarray]:
    """A rank's share of a step's items, times the size: whole numbers, with averages that are the same for
    any size."""
    mine = size * sum(1 + number + step for number in range(ITEMS) if number % size == rank)
    return [np.full(count, mine * (1 + count % 3), np.float64) for count in (7, 1, 12)]


def fresh() -> list[np.ndarray]:
    return [np.zeros(count) for count in (7, 1, 12)]


def without_deaths() -> list[bytes]:
    values, states = fresh(), [dict[str, Any]() for _ in range(3)]
    for step in range(STEPS):
        for one, gradient, state in zip(values, gradients(step, 0, 1), states, strict=True):
            momentum(one, gradient, state)
    return [one.tobytes() for one in values]


@pytest.mark.parametrize("seed", few(range(100), range(8), MORE))
def test_values_are_those_of_a_run_without_deaths(seed: int) -> None:
    drawn = random.Random(seed)
    size, copies, whole = drawn.randint(2, 5), drawn.randint(1, 2), drawn.random() < 0.3
    victim, step = drawn.randrange(size), drawn.randint(1, 120)
    dies, comes = drawn.uniform(0, 0.015), drawn.uniform(0, 0.01)
    chaos = Chaos(seed)

    async def train(pg: ProcessGroup) -> list[bytes]:
        mine = fresh()
        optimizer = await ShardedOptimizer(pg, mine, momentum, elastic=True, redundancy=copies, whole=whole)
        while optimizer.steps < STEPS:
            await asyncio.sleep(0.002)
            await optimizer.step(gradients(optimizer.steps, optimizer.pg.rank, optimizer.pg.size))
        return [one.tobytes() for one in mine]

    async def main(pg: ProcessGroup) -> list[bytes]:
        loop = asyncio.get_running_loop()
        if pg.rank == victim:
            loop.call_later(dies, lambda: chaos.crash_at_step(victim, chaos.processes[victim].steps + step))
        if pg.rank == 0:
            loop.call_later(comes, chaos.join, train, 30.0)
        return await train(pg)

    results: list[Any] = run_virtual(run_cluster(size, main, processes=chaos))
    wanted = without_deaths()
    assert len(chaos.joined) == 1
    for found in (*results, chaos.joined[0].result()):
        assert isinstance(found, Crashed) or found == wanted


def test_a_newcomer_that_does_not_reach_the_members_stops_nobody() -> None:
    """The store hears it, so it waits there for longer than anything else takes."""
    chaos, ends = Chaos(3), []

    async def main(pg: ProcessGroup) -> list[bytes]:
        mine, loop = fresh(), asyncio.get_running_loop()
        optimizer = await ShardedOptimizer(pg, mine, momentum, elastic=True, redundancy=1)
        while optimizer.steps < STEPS:
            if optimizer.steps == 3 and pg.rank == 0 and not chaos.joined:
                waits = chaos.join(main, 600.0)
                chaos.cut(range(3), [waits.number])
            await asyncio.sleep(2)
            await optimizer.step(gradients(optimizer.steps, optimizer.pg.rank, optimizer.pg.size))
        ends.append(loop.time())
        return [one.tobytes() for one in mine]

    assert run_virtual(run_cluster(3, main, processes=chaos)) == [without_deaths()] * 3
    assert isinstance(chaos.joined[0].exception(), RendezvousTimeout)
    assert max(ends) < 300
