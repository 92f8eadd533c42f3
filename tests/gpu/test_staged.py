"""Device tensors through the host, on one device or several."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.gpu.conformance import check_programs
from tests.gpu.tensors import library, occupy, passed_by_all

pytestmark = pytest.mark.gpu

BACKEND = "cpu:host,cuda:host"
LIBRARIES = pytest.mark.parametrize("lib", ["cupy", "torch"])
COUNT = 100_000


@pytest.mark.usefixtures("has")
@LIBRARIES
@pytest.mark.parametrize("world_size", [1, 2, 3])
@spmd(backend=BACKEND, timeout=240)
async def test_programs(pg: ProcessGroup, lib: str, world_size: int) -> None:
    assert pg.size == world_size
    work = pg.all_reduce(library(lib, pg).put(np.ones(3)), async_op=True)
    with pytest.raises(dist.UsageError, match="runs on the host"):
        work.synchronize()
    await work
    await check_programs(pg, library(lib, pg), pg.size)


@spmd(world_size=2, backend=BACKEND)
async def test_large_strided_and_uneven(pg: ProcessGroup) -> None:
    lib = library("cupy", pg)
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
    lib, peer = library("cupy", pg), 1 - pg.rank
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

    lib = library("cupy", pg)
    ready, tensor = lib.put(np.arange(COUNT) + pg.rank), lib.put(np.zeros(COUNT, np.int64))
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        occupy(cupy)
        cupy.copyto(tensor, ready)
        work = pg.all_gather(tensor, async_op=True)
    assert np.array_equal(lib.get(await work), [np.arange(COUNT), np.arange(COUNT) + 1])


@spmd(world_size=2, backend=BACKEND)
async def test_operation_in_a_batch_is_copied_after_the_stream_of_its_call(pg: ProcessGroup) -> None:
    import cupy

    lib = library("cupy", pg)
    ready, tensor = lib.put(np.arange(COUNT) + pg.rank), lib.put(np.zeros(COUNT, np.int64))
    cupy.cuda.Device().synchronize()
    async with pg.coalesce():
        with cupy.cuda.Stream(non_blocking=True):
            occupy(cupy)
            cupy.copyto(tensor, ready)
            work = pg.all_gather(tensor, async_op=True)
    assert np.array_equal(lib.get(await work), [np.arange(COUNT), np.arange(COUNT) + 1])


@spmd(world_size=2, backend=BACKEND)
async def test_messages_are_copied_after_what_their_streams_were_given(pg: ProcessGroup) -> None:
    """A send after what is written, a receive after what is read."""
    import cupy

    lib, peer = library("cupy", pg), 1 - pg.rank
    ready, tensor = lib.put(np.arange(COUNT) + pg.rank), lib.put(np.zeros(COUNT, np.int64))
    into, kept = lib.put(np.full(COUNT, -1 - pg.rank)), lib.put(np.zeros(COUNT, np.int64))
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        occupy(cupy)
        cupy.copyto(tensor, ready)
        sent = pg.send(tensor, peer, async_op=True)
    with cupy.cuda.Stream(non_blocking=True):
        occupy(cupy, 2)
        cupy.copyto(kept, into)
        received = pg.recv(into, peer, async_op=True)
    await sent
    assert await received == peer
    assert np.array_equal(lib.get(into), np.arange(COUNT) + peer)
    assert np.array_equal(lib.get(kept), np.full(COUNT, -1 - pg.rank))


@spmd(world_size=2, backend=BACKEND)
async def test_abort_beside_a_caller_that_computes(pg: ProcessGroup) -> None:
    import cupy

    lib = library("cupy", pg)
    await pg.all_reduce(lib.put(np.ones(3)))
    tensor = lib.put(np.ones(COUNT))
    with cupy.cuda.Stream(non_blocking=True):
        occupy(cupy)
        work = pg.all_reduce(tensor, async_op=True)
    await passed_by_all(pg)
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
    lib = library("cupy", pg)
    mine = lib.put(np.arange(6.0) + pg.rank)
    work = pg.all_reduce(mine, async_op=True)
    with pytest.raises(dist.UsageError, match="runs on the host"):
        work.synchronize()
    await work
    assert np.array_equal(lib.get(mine), np.arange(6.0) * 2 + 1)
