"""Deaths of ranks of one host that are no neighbours in the overlay, where none of theirs can tell."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from aiodist.testing.channel_pair import turn_until


@pytest.mark.parametrize("waits_in", ["all_reduce", "recv_object"])
@spmd(9, transport="shm", exits={0: -9})
async def test_all_its_neighbours_have_left(pg: ProcessGroup, waits_in: str) -> None:
    """0 and 3 go on in a group of their own."""
    pair = await pg.new_group([0, 3])
    await pg.barrier()
    if pair is None or pg.rank not in (0, 3):
        return
    core = pg._core.control.core
    await turn_until(lambda: core.departed.issuperset(set(core.neighbours) - {0, 3}))
    await pair.all_reduce(np.ones(1))  # 0 has seen its neighbours leave, too
    if pg.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.PeerLost):
        await (pair.all_reduce(np.ones(1)) if waits_in == "all_reduce" else pair.recv_object(0))


@spmd(9, transport="shm", exits=dict.fromkeys((0, 1, 2, 4, 5, 7, 8), -9))
async def test_all_its_neighbours_die_with_it(pg: ProcessGroup) -> None:
    pair = await pg.new_group([0, 3])
    await pg.barrier()
    if pg.rank not in (3, 6):
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.PeerLost):
        await (pg if pair is None else pair).all_reduce(np.ones(1))
    pg.abort()
