"""A rank without descriptors accuses nobody: the group breaks, and says whose limit is reached."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.helpers import core_of
from tests.levels import MORE


def exhaust() -> None:
    """From now on this process can open nothing more."""
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


async def until_broken(pg: ProcessGroup, words: str) -> None:
    """The group breaks, and nobody is lost."""
    with pytest.raises(dist.GroupBroken, match=words) as caught:
        while True:
            await pg.barrier()
    assert type(caught.value) is dist.GroupBroken
    assert not core_of(pg).control.core.lost
    assert "ulimit -n" in str(caught.value)


@spmd(world_size=3)
async def test_who_cannot_dial_names_itself(pg: ProcessGroup) -> None:
    if pg.rank == 0:
        await pg.barrier()
        await pg.barrier()  # who leaves this one has all connections that the first one took
        exhaust()
        pg.send(np.zeros(100_000), 1, async_op=True)  # by a channel of its own, which is not there yet
    await until_broken(pg, r"^rank 0 has no file descriptor left \(its limit is \d+\), so it cannot connect")


@pytest.mark.slow(MORE)
@spmd(world_size=3)
async def test_who_can_accept_nobody_names_itself(pg: ProcessGroup) -> None:
    if pg.rank == 0:
        await pg.barrier()
        await pg.barrier()
        exhaust()
    elif pg.rank == 1:
        for _ in range(3):
            await pg.barrier()
        pg.send(np.zeros(100_000), 0, async_op=True)
    await until_broken(pg, r"^rank 0 has no file descriptor left \(its limit is \d+\), so it cannot take")


@pytest.mark.slow(MORE)
@spmd(world_size=6, hosts=3)
async def test_who_cannot_dial_another_host_names_itself(pg: ProcessGroup) -> None:
    if pg.rank == 5:
        await pg.barrier()
        await pg.barrier()
        exhaust()
        pg.send(np.zeros(100_000), 2, async_op=True)  # no round of a barrier takes this way
    await until_broken(pg, r"^rank 5 has no file descriptor left \(its limit is \d+\), so it cannot connect")
