"""Device tensors through the host, on one device or several."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.gpu.conformance import check_programs
from tests.gpu.tensors import library

pytestmark = pytest.mark.gpu

BACKEND = "cpu:host,cuda:host"
LIBRARIES = pytest.mark.parametrize("lib", ["cupy", "torch"])
SIDE = 3000  # a product of matrices of this side takes longer than any copy begins


@pytest.mark.usefixtures("has")
@LIBRARIES
@pytest.mark.parametrize("world_size", [1, 2, 3])
@spmd(backend=BACKEND, timeout=240)
async def test_programs(pg: ProcessGroup, lib: str, world_size: int) -> None:
    assert pg.size == world_size
    work = pg.all_reduce(library(lib).put(np.ones(3)), async_op=True)
    with pytest.raises(dist.UsageError, match="runs on the host"):
        work.synchronize()
    await work
    await check_programs(pg, library(lib), pg.size)


@spmd(world_size=2, backend=BACKEND)
async def test_large_strided_and_uneven(pg: ProcessGroup) -> None:
    lib = library("cupy")
    base = np.arange(5_000_003) % 13
    for dtype in (np.float32, np.int16, np.int64):
        mine = lib.put((base + pg.rank).astype(dtype))
        await pg.all_reduce(mine)
        assert np.array_equal(lib.get(mine), (base * 2 + 1).astype(dtype))
    wide = lib.put(np.arange(12_000_000, dtype=np.float32).reshape(3000, 4000) * (pg.rank + 1))
    await pg.all_reduce(wide[:, ::2])
    expected = np.arange(12_000_000, dtype=np.float32).reshape(3000, 4000)
    got = lib.get(wide)
    assert np.array_equal(got[:, ::2], expected[:, ::2] * 3)
    assert np.array_equal(got[:, 1::2], expected[:, 1::2] * (pg.rank + 1))


@spmd(world_size=2, backend=BACKEND)
async def test_ranks_with_tensors_in_different_places(pg: ProcessGroup) -> None:
    lib, peer = library("cupy"), 1 - pg.rank
    array = np.arange(50_000.0) + pg.rank
    mine = array if pg.rank else lib.put(array)
    await pg.all_reduce(mine)
    assert np.array_equal(mine if pg.rank else lib.get(mine), np.arange(50_000.0) * 2 + 1)
    first, second = np.zeros(9, np.int64), lib.put(np.zeros(9, np.int64))
    received = [pg.recv(second, peer, async_op=True), pg.recv(first, peer, async_op=True)]
    await pg.send(lib.put(np.arange(9) + pg.rank), peer)
    await pg.send(np.arange(9) + 100 + pg.rank, peer)
    assert await asyncio.gather(*received) == [peer, peer]
    assert np.array_equal(lib.get(second), np.arange(9) + peer)
    assert np.array_equal(first, np.arange(9) + 100 + peer)


@spmd(world_size=2, backend=BACKEND)
async def test_copies_wait_for_the_callers_stream(pg: ProcessGroup) -> None:
    import cupy

    with cupy.cuda.Stream(non_blocking=True):
        slow = cupy.ones((SIDE, SIDE), np.float32)
        for _ in range(20):
            slow = slow @ slow / SIDE
        work = pg.all_gather(slow[0] * (3 + pg.rank), async_op=True)  # a temporary
        del slow
    expected = np.broadcast_to(np.array([[3], [4]], np.float32), (2, SIDE))
    assert np.array_equal(cupy.asnumpy(await work), expected)


@spmd(world_size=2, backend=BACKEND)
async def test_abort_beside_a_caller_that_computes(pg: ProcessGroup) -> None:
    import cupy

    lib = library("cupy")
    await pg.all_reduce(lib.put(np.ones(3)))
    with cupy.cuda.Stream(non_blocking=True):
        slow = cupy.ones((SIDE, SIDE), np.float32)
        for _ in range(50):
            slow = slow @ slow / SIDE
        work = pg.all_reduce(slow, async_op=True)
    if pg.rank == 0:
        pg.abort("enough")
    with pytest.raises(dist.GroupAborted, match="enough"):
        await work
    cupy.cuda.Device().synchronize()
    assert float((cupy.arange(5) * 2).sum()) == 20
    async with await pg.rebuild() as again:
        mine = lib.put(np.arange(4.0) + again.rank)
        await again.all_reduce(mine)
        assert np.array_equal(lib.get(mine), np.arange(4.0) * 2 + 1)


@spmd(world_size=2, env={"CUDA_VISIBLE_DEVICES": "0", "NCCL_MULTI_RANK_GPU_ENABLE": "0"})
async def test_ranks_that_share_a_device_are_staged_unasked(pg: ProcessGroup) -> None:
    lib = library("cupy")
    mine = lib.put(np.arange(6.0) + pg.rank)
    work = pg.all_reduce(mine, async_op=True)
    with pytest.raises(dist.UsageError, match="runs on the host"):
        work.synchronize()
    await work
    assert np.array_equal(lib.get(mine), np.arange(6.0) * 2 + 1)
