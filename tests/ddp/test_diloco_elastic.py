"""DiLoCo where members die and come: the common values are those of a run without deaths, exactly."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import aiodist as dist
from aiodist.ddp import DiLoCo
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.helpers import core_of
from tests.levels import COSTLY, MORE, few

STEPS, EVERY = 24, 4
COUNT = 40


def drift(step: int) -> np.ndarray:
    """What every rank's own optimiser does in a step: multiples of 1/4, so that all averages are exact."""
    return (np.arange(COUNT) % 7 + step).astype(np.float32) * 4


def without_deaths(delay: int) -> np.ndarray:
    """The common values at the end, worked out by one rank: with a rate of 1/4 and a momentum of 1/2."""
    own, common, velocity = (np.zeros(COUNT, np.float32) for _ in range(3))
    moved = None
    for step in range(1, STEPS + 1):
        own = own + drift(step)
        if step % EVERY == 0:
            moved = common - own
        if step > delay and (step - delay) % EVERY == 0 and moved is not None:
            velocity = velocity / 2 + moved
            common = common - (moved + velocity / 2) / 4
            own = common.copy()
    return common


async def train(pg: ProcessGroup, dies: tuple[tuple[int, int, str], ...], delay: int) -> DiLoCo:
    """Train; ranks of the first epoch kill themselves at (step, rank, where)."""
    me = pg.rank
    own = np.zeros(COUNT, np.float32)
    diloco = await DiLoCo(
        *(pg, [own]), sync_every=EVERY, delay=delay, outer_lr=0.25, outer_momentum=0.5, elastic=True
    )
    while diloco.steps < STEPS:
        step = diloco.steps + 1
        own += drift(step)
        if (step, me, "before") in dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if (step, me, "within") in dies:
            core_of(pg).loop.call_soon(os.kill, os.getpid(), signal.SIGKILL)
        await diloco.step()
        if (step, me, "after") in dies:
            os.kill(os.getpid(), signal.SIGKILL)
    np.testing.assert_array_equal(diloco._commons[0].values, without_deaths(delay))
    return diloco


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    ("where", "delay"),
    few([("before", 0), ("within", 0), ("after", 0), ("before", 2), ("within", 2)], [("within", 0)]),
)
@spmd(world_size=4, exits={2: -9})
async def test_a_death_changes_nothing(pg: ProcessGroup, where: str, delay: int) -> None:
    diloco = await train(pg, ((8 + delay, 2, where),), delay)
    assert (diloco.pg.size, diloco.pg.epoch) == (3, 1)
    assert diloco.exchanges == STEPS // EVERY - (delay > 0)


@pytest.mark.slow(MORE)
@spmd(world_size=4, exits={0: -9, 1: -9, 3: -9})
async def test_three_of_four_die_in_turn(pg: ProcessGroup) -> None:
    diloco = await train(pg, ((4, 0, "within"), (12, 1, "before"), (20, 3, "after")), 0)
    assert diloco.pg.size == 1 and diloco.exchanges == STEPS // EVERY


@spmd(world_size=2)
async def test_without_elastic_a_death_is_an_error(pg: ProcessGroup) -> None:
    own = np.zeros(3, np.float32)
    diloco = await DiLoCo(pg, [own], sync_every=1)
    if pg.rank == 1:
        pg.abort("no more")
        return
    with pytest.raises(dist.GroupBroken):
        await diloco.step()
