"""NCCL on devices: results, groups, messages, and what happens when it breaks."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.gpu.conformance import check_programs
from tests.gpu.tensors import library, passed_by_all

pytestmark = pytest.mark.gpu

BACKEND = "cpu:host,cuda:nccl"
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}  # with all, two ranks fill a GPU
LIBRARIES = pytest.mark.parametrize("lib", ["cupy", "torch"])


@pytest.mark.usefixtures("has")
@LIBRARIES
@spmd(world_size=1, backend=BACKEND)
async def test_programs_on_one_rank(pg: ProcessGroup, lib: str) -> None:
    await check_programs(pg, library(lib, pg), 1)


@pytest.mark.usefixtures("has", "several")
@LIBRARIES
@pytest.mark.parametrize("world_size", [2, 3])
@spmd(backend=BACKEND, env=SHARED, timeout=240)
async def test_programs_on_several_ranks(pg: ProcessGroup, lib: str, world_size: int) -> None:
    import cupy

    assert pg.size == world_size
    work = pg.all_reduce(library(lib, pg).put(np.ones(3)), async_op=True)
    # So it is NCCL: no stream can wait for what goes through the host.
    work.synchronize(cupy.cuda.Stream(non_blocking=True))
    await work
    await check_programs(pg, library(lib, pg), pg.size)


@pytest.mark.usefixtures("several")
@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_large_and_uneven(pg: ProcessGroup) -> None:
    lib = library("cupy", pg)
    base = np.arange(5_000_003) % 13
    for dtype in (np.float32, np.int16, np.int64):
        mine = lib.put((base + pg.rank).astype(dtype))
        await pg.all_reduce(mine)
        assert np.array_equal(lib.get(mine), (base * 2 + 1).astype(dtype))
    counts = [1_000_000, 3]
    sent = lib.put(np.arange(1_000_003, dtype=np.float64) + pg.rank)
    got = lib.get(await pg.all_to_all(sent, None, counts, [counts[pg.rank]] * 2))
    start = 1_000_000 * pg.rank
    expected = [np.arange(start, start + counts[pg.rank]) + source for source in range(2)]
    assert np.array_equal(got, np.concatenate(expected))


@pytest.mark.usefixtures("several")
@spmd(world_size=3, backend=BACKEND, env=SHARED)
async def test_groups_of_groups_and_batches(pg: ProcessGroup) -> None:
    lib = library("cupy", pg)
    evens = await pg.new_group([0, 2])
    halves = await pg.split(pg.rank % 2, key=-pg.rank)
    alone = await pg.new_group([1])
    assert halves is not None
    for group in (pg, evens, halves, alone):
        if group is None:
            continue
        tensors = [lib.put(np.arange(7) * (pg.rank + 1) + i) for i in range(3)]
        async with group.coalesce():
            for tensor in tensors:
                group.all_reduce(tensor)
        factor = sum(rank + 1 for rank in group.ranks)
        for i, tensor in enumerate(tensors):
            assert np.array_equal(lib.get(tensor), np.arange(7) * factor + i * group.size)
    mine = lib.put(np.arange(6.0) * (pg.rank + 1))
    await pg.all_reduce(mine, dist.premul_sum(0.5 * (pg.rank + 1)))
    assert np.array_equal(lib.get(mine), np.arange(6.0) * 0.5 * (1 + 4 + 9))
    for made in (evens, halves, alone):
        if made is not None:
            await made.aclose()


@pytest.mark.usefixtures("several")
@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_messages_both_ways_tagged_and_beside_collectives(pg: ProcessGroup) -> None:
    lib, peer = library("cupy", pg), 1 - pg.rank
    sent = [
        pg.send(lib.put(np.arange(9) + 100 * i + pg.rank), peer, tag=i % 2, async_op=True) for i in range(4)
    ]
    total = pg.all_reduce(lib.put(np.ones(5)), async_op=True)
    for tag in (1, 0):
        for i in range(tag, 4, 2):
            into = lib.put(np.zeros(9, np.int64))
            assert await pg.recv(into, None if i else peer, tag=tag) == peer
            assert np.array_equal(lib.get(into), np.arange(9) + 100 * i + peer)
    assert np.array_equal(lib.get(await total), np.full(5, 2.0))
    await asyncio.gather(*sent)


@pytest.mark.usefixtures("several")
@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_ranks_that_disagree_are_told(pg: ProcessGroup) -> None:
    lib = library("cupy", pg)
    await pg.all_reduce(lib.put(np.ones(3)))
    with pytest.raises(dist.CollectiveMismatch, match="float32"):
        await pg.all_reduce(lib.put(np.ones(3, np.float32 if pg.rank else np.float64)))


@pytest.mark.usefixtures("several")
@spmd(world_size=2, backend=BACKEND, env=SHARED, exits={1: -9})
async def test_lost_peer_frees_the_device_and_the_process_lives_on(pg: ProcessGroup) -> None:
    """The stream of a communicator whose peer is dead is freed by the abort: else this would never end."""
    import cupy

    lib = library("cupy", pg)
    await pg.all_reduce(lib.put(np.ones(3)))
    tensor = lib.put(np.arange(1000.0))
    if pg.rank == 1:
        await pg.recv(np.zeros(1), 0)  # the first one is over there
        os.kill(os.getpid(), 9)
    await pg.send(np.zeros(1), 1)
    with pytest.raises(dist.PeerLost, match="rank 1"):
        await pg.all_reduce(tensor)
    cupy.cuda.Device().synchronize()
    assert float((cupy.arange(5) * 2).sum()) == 20
    again = await pg.rebuild()
    assert again.size == 1
    mine = lib.put(np.arange(4.0))
    await again.all_reduce(mine)
    assert np.array_equal(lib.get(mine), np.arange(4.0))
    await again.aclose()


@pytest.mark.usefixtures("several")
@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_abort_with_an_operation_under_way(pg: ProcessGroup) -> None:
    import cupy

    lib = library("cupy", pg)
    await pg.all_reduce(lib.put(np.ones(3)))
    await passed_by_all(pg)
    if pg.rank == 0:
        work = pg.all_reduce(lib.put(np.ones(1 << 20)), async_op=True)
        await asyncio.sleep(0)  # the other never comes
        pg.abort("enough")
        with pytest.raises(dist.GroupAborted, match="enough"):
            await work
        with pytest.raises(dist.GroupAborted, match="enough"):
            work.synchronize()
    else:
        with pytest.raises(dist.GroupAborted, match="enough"):
            await pg.recv(np.zeros(1), 0)  # never comes
    cupy.cuda.Device().synchronize()
