"""Ranks on several hosts, which are network namespaces: real processes, TCP between, shared memory within."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.host.backend import HostBackend
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from aiodist.testing.conformance_backend import check_backend, check_concurrent, check_program
from tests.helpers import host_of
from tests.levels import MORE, few

ALL = {"AIODIST_HIERARCHY": "1", "AIODIST_INLINE": "4096"}


def taken(pg: ProcessGroup) -> int:
    """How many internal operations there were on this rank's host."""
    found = host_of(pg).hierarchy
    assert found is not None
    inner = found.grid.inner
    assert isinstance(inner.backend, HostBackend)
    assert inner.backend.local is not None
    return inner.issued


@pytest.mark.slow(MORE)
@spmd(world_size=4, hosts=2, env=ALL)
async def test_conformance(pg: ProcessGroup) -> None:
    await check_backend(pg, 11)
    assert taken(pg) > 50


@pytest.mark.slow(MORE)
@spmd(world_size=6, hosts=3, env=ALL)
async def test_random_programs(pg: ProcessGroup) -> None:
    for seed in range(3):
        await check_program(pg, 900 + seed, 30, big=20_000)
        await check_concurrent(pg, 1000 + seed, 30)
    assert taken(pg) > 50


@pytest.mark.slow(MORE)
@pytest.mark.parametrize("least", few(["1", "1000000000000"], ["1"]))
@spmd(world_size=4, hosts=2)
async def test_large_tensors(pg: ProcessGroup, least: str) -> None:
    for count in (1 << 20, (1 << 20) + 1):
        mine = np.arange(count, dtype=np.float32) % 1000 + pg.rank
        await pg.all_reduce(mine)
        assert np.array_equal(mine, np.arange(count, dtype=np.float32) % 1000 * 4 + 6)
        rows = await pg.all_gather(np.full(count, pg.rank, np.int32))
        assert np.array_equal(rows, np.repeat(np.arange(4, dtype=np.int32), count).reshape(4, count))
        await pg.broadcast(mine, 3)


@pytest.mark.slow(MORE)
@spmd(world_size=4, hosts=2, env=ALL)
async def test_mismatch(pg: ProcessGroup) -> None:
    await pg.all_reduce(np.zeros(10_000))
    with pytest.raises(dist.CollectiveMismatch) as caught:
        while True:
            await pg.all_reduce(np.zeros(10_000 + (pg.rank == 3)))
    assert set(caught.value.said) == {0, 1, 2, 3}


async def _die(pg: ProcessGroup, count: int, victim: int) -> None:
    tensor: Any = np.zeros(count, np.float32)
    if pg.rank == victim:
        await pg.all_reduce(tensor)
        pg.all_reduce(tensor, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.PeerLost) as caught:
        while True:
            await pg.all_reduce(tensor)
    assert caught.value.ranks == (victim,)
    with pytest.raises(dist.PeerLost):
        await pg.barrier()


@pytest.mark.parametrize("count", few([100, 4_000_000], [100]))
@spmd(world_size=4, hosts=2, env=ALL, exits={3: -signal.SIGKILL})
async def test_killed_peer_is_named_on_every_survivor(pg: ProcessGroup, count: int) -> None:
    await _die(pg, count, 3)


@pytest.mark.slow(MORE)
@spmd(world_size=4, hosts=2, env=ALL)
async def test_abort(pg: ProcessGroup) -> None:
    if pg.rank == 2:
        for other in (0, 1, 3):  # who says this has left init_process_group
            await pg.recv(np.zeros(1), other)
    works = [pg.all_reduce(np.zeros(2_000_000), async_op=True) for _ in range(1 if pg.rank == 2 else 3)]
    if pg.rank == 2:
        pg.abort("enough")
    else:
        pg.send(np.zeros(1), 2, async_op=True)
    for work in works:
        with pytest.raises(dist.GroupAborted, match="enough"):
            await work
