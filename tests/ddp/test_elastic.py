"""GradientSync where members die: what counts is what a run without deaths gives, exactly."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.levels import COSTLY, MORE, few

STEPS = 12
ITEMS = 60  # of which each step's batch consists


def item(step: int, number: int) -> float:
    """An integer that no other item has."""
    return float(1 + step * ITEMS + number)


def gradient(step: int, rank: int, size: int) -> np.ndarray:
    """This rank's share; whole numbers, so that averages are exact for any number of ranks."""
    mine = [item(step, number) for number in range(ITEMS) if number % size == rank]
    return np.array([size * sum(mine), -size * sum(mine), size * len(mine)])


EXPECTED = np.array(
    [
        sum(item(step, number) for step in range(STEPS) for number in range(ITEMS)),
        -sum(item(step, number) for step in range(STEPS) for number in range(ITEMS)),
        STEPS * ITEMS,
    ]
)


async def train(pg: ProcessGroup, dies: tuple[tuple[int, int, str], ...]) -> tuple[ProcessGroup, int]:
    """Add up all items; ranks of the first epoch kill themselves at (step, rank, where).

    Returns:
        The last group, and how many steps were repeated.
    """
    me = pg.rank
    weights, momentum, step = np.zeros(3), np.full(3, float(me)), np.zeros(1, np.int64)
    sync = await dist.GradientSync(pg, [weights], elastic=True, state=[momentum, step])
    repeated = 0
    while step[0] < STEPS:
        now = int(step[0])
        if (now, me, "before") in dies:
            os.kill(os.getpid(), signal.SIGKILL)
        sync.ready(0, gradient(now, sync.pg.rank, sync.pg.size))
        if (now, me, "between") in dies:
            os.kill(os.getpid(), signal.SIGKILL)
        averages = await sync.finish()
        if not averages:
            repeated += 1
            continue
        weights += averages[0]
        step += 1
        if (now, me, "after") in dies:
            os.kill(os.getpid(), signal.SIGKILL)
    np.testing.assert_array_equal(weights, EXPECTED)
    assert (momentum == momentum[0]).all()  # rank 0's, whoever that was
    return sync.pg, repeated


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("where", few(["before", "between", "after"], ["between"]))
@spmd(world_size=4, exits={2: -9})
async def test_a_death_in_a_step_changes_nothing(pg: ProcessGroup, where: str) -> None:
    last, repeated = await train(pg, ((5, 2, where),))
    assert last.size == 3
    assert last.epoch == 1
    assert repeated == 1


@pytest.mark.slow(MORE)
@spmd(world_size=4, exits={0: -9, 1: -9})
async def test_rank_0_and_another_die_in_different_steps(pg: ProcessGroup) -> None:
    last, repeated = await train(pg, ((3, 0, "between"), (7, 1, "before")))
    assert last.size == 2
    assert last.epoch == repeated == 2


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, exits={0: -9, 1: -9})
async def test_the_last_one_ends_alone(pg: ProcessGroup) -> None:
    last, _ = await train(pg, ((2, 1, "after"), (4, 0, "between")))
    assert last.size == 1


@pytest.mark.slow(MORE)
@spmd(world_size=3, exits={1: -9})
async def test_too_few_to_go_on(pg: ProcessGroup) -> None:
    if pg.rank == 1:
        await dist.GradientSync(pg, [np.zeros(3)], elastic=True, min_size=3)
        os.kill(os.getpid(), signal.SIGKILL)
    pg.timeout = 5.0  # for newcomers that nobody starts
    with pytest.raises(dist.QuorumLost):  # from either: it dies when its own values have arrived
        sync = await dist.GradientSync(pg, [np.zeros(3)], elastic=True, min_size=3)
        sync.ready(0, np.ones(3))
        await sync.finish()


@pytest.mark.slow(COSTLY)
@spmd(world_size=2)
async def test_elastic_is_for_a_world(pg: ProcessGroup) -> None:
    half = await pg.split(0)
    assert half is not None
    with pytest.raises(dist.UsageError, match="is not the world"):
        dist.GradientSync(half, [np.zeros(3)], elastic=True)
    assert half.issued_count() == 0


@spmd(world_size=2, exits={1: -9})
async def test_without_elastic_a_death_is_an_error(pg: ProcessGroup) -> None:
    weights = np.zeros(3)
    sync = await dist.GradientSync(pg, [weights])
    if pg.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    sync.ready(0, np.ones(3))
    with pytest.raises(dist.PeerLost) as caught:
        await sync.finish()
    assert caught.value.ranks == (1,)
