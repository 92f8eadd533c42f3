"""Deaths of ranks of one host that are no neighbours in the overlay, where none of theirs can tell."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual, spmd
from tests.helpers import core_of
from tests.levels import COSTLY
from tests.support.channel_pair import turn_until
from tests.support.chaos import Chaos


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("waits_in", ["all_reduce", "recv_object"])
@spmd(9, transport="shm", exits={0: -9})
async def test_all_its_neighbours_have_left(pg: ProcessGroup, waits_in: str) -> None:
    """0 and 3 go on in a group of their own."""
    pair = await pg.new_group([0, 3])
    await pg.barrier()
    if pair is None or pg.rank not in (0, 3):
        return
    core = core_of(pg).control.core
    await turn_until(lambda: core.departed.issuperset(set(core.neighbours) - {0, 3}))
    await pair.all_reduce(np.ones(1))  # 0 has seen its neighbours leave, too
    if pg.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.PeerLost):
        await (pair.all_reduce(np.ones(1)) if waits_in == "all_reduce" else pair.recv_object(0))


@pytest.mark.slow(COSTLY)
@spmd(9, transport="shm", exits=dict.fromkeys((0, 1, 2, 4, 5, 7, 8), -9))
async def test_all_its_neighbours_die_with_it(pg: ProcessGroup) -> None:
    pair = await pg.new_group([0, 3])
    await pg.barrier()
    if pg.rank not in (3, 6):
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.PeerLost):
        await (pg if pair is None else pair).all_reduce(np.ones(1))
    pg.abort()


@pytest.mark.parametrize("when", [0, 0.0003, 0.001])
@pytest.mark.parametrize("size", [3, 5])
def test_a_death_while_a_member_closes_breaks_the_group_on_all_or_on_none(size: int, when: float) -> None:
    """Some may hear first that it closes, and others that it is lost."""

    def outcomes(seed: int) -> set[str]:
        chaos = Chaos(seed)
        found: dict[int, str] = {}

        async def main(pg: ProcessGroup) -> None:
            group: Any = await pg.new_group()
            await group.barrier()
            if pg.rank == 1:
                closing = asyncio.ensure_future(group.aclose())
                await asyncio.sleep(when)
                chaos.crash(1)
                await closing
                return
            work = group.recv(np.zeros(1), 2 if pg.rank == 0 else 0, async_op=True)
            try:
                await work.wait(100)
            except (TimeoutError, dist.PeerLost) as error:
                found[pg.rank] = type(error).__name__
            await asyncio.sleep(200)  # it lives on, and does other things

        run_virtual(run_cluster(size, main, processes=chaos, return_exceptions=True, timeout=300))
        return set(found.values())

    seen = [outcomes(seed) for seed in range(6)]
    assert all(len(found) == 1 for found in seen), seen


def test_a_rank_that_was_given_up_bears_the_loss_of_all_others() -> None:
    """It counts itself as lost then, and there is no member that could tell the others."""

    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        await group.barrier()
        if pg.rank == 0:
            watch, control = core_of(group)._watch, core_of(group).control
            control.core.lost.update(dict.fromkeys(range(3), "it is silent"))
            watch.rank_lost(1, "it is silent")
            with pytest.raises(dist.PeerLost):
                await group.barrier()

    outcomes = run_virtual(run_cluster(3, main, return_exceptions=True))
    assert not isinstance(outcomes[0], StopIteration | RuntimeError)
