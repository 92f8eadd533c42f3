"""Device tensors through the host on processes of one host, which use each other's memory."""

from __future__ import annotations

import asyncio
import os
import sys

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.backends.cuda.stand_in import Devices, Tensor
from tests.backends.staged.library import StandIn
from tests.gpu.conformance import check_programs
from tests.levels import COSTLY, few

BACKEND = "cpu:host,cuda:host"

if "RANK" in os.environ:  # in a rank's process, before it has a group
    sys.modules.update(Devices(count=1).modules)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("transport", few(["shm", "tcp"], ["shm"]))
@spmd(world_size=3, backend=BACKEND)
async def test_random_programs(pg: ProcessGroup, transport: str) -> None:
    await check_programs(pg, StandIn(), 7, 40)


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, backend=BACKEND)
async def test_more_at_once_than_there_are_slots(pg: ProcessGroup) -> None:
    """A collective that is still copied has its number, and others of tensors on the host pass it."""
    there = [Tensor(np.arange(2000) + pg.rank * i) for i in range(50)]
    here = [np.arange(3) * i + pg.rank for i in range(50)]
    works: list[dist.Work[object]] = []
    for one, other in zip(there, here, strict=True):
        works.append(pg.all_reduce(one, async_op=True))
        works.append(pg.all_reduce(other, async_op=True))
    await asyncio.gather(*works)
    for i, (one, other) in enumerate(zip(there, here, strict=True)):
        assert np.array_equal(one.array, np.arange(2000) * 3 + 3 * i)
        assert np.array_equal(other, np.arange(3) * i * 3 + 3)


@spmd(world_size=3, backend=BACKEND, exits={1: -9})
async def test_group_goes_on_without_a_rank_that_died(pg: ProcessGroup) -> None:
    await pg.all_reduce(Tensor(np.zeros(3)))
    if pg.rank == 1:
        await asyncio.gather(*[pg.recv(np.zeros(1), rank) for rank in (0, 2)])
        os.kill(os.getpid(), 9)
    await pg.send(np.zeros(1), 1)  # the first one is over here
    tensor = Tensor(np.arange(300_000.0))
    with pytest.raises(dist.PeerLost, match="rank 1"):
        await pg.all_reduce(tensor)
    async with await pg.rebuild() as again:
        assert (again.size, again.device) == (2, 0)
        mine = Tensor(np.arange(100_000.0) + again.rank)
        await again.all_reduce(mine)
        assert np.array_equal(mine.array, np.arange(100_000.0) * 2 + 1)
