"""How groups end while the device is busy, and what is left after many."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.gpu.tensors import Library, library, occupy, passed_by_all, until_launched

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("several")]

BACKEND = "cpu:host,cuda:nccl"
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
REBUILDS = 20
KEPT = 256 << 20  # bytes of the device that may come and go: both ranks use it, and the driver caches


async def well(pg: ProcessGroup, lib: Library) -> None:
    """The device and the group work."""
    import cupy

    cupy.cuda.Device().synchronize()
    assert float((cupy.arange(5) * 2).sum()) == 20
    mine = lib.put(np.arange(1000.0) * (pg.rank + 1))
    await pg.all_reduce(mine)
    assert np.array_equal(lib.get(mine), np.arange(1000.0) * sum(range(1, pg.size + 1)))


@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_abort_while_a_group_is_being_connected(pg: ProcessGroup) -> None:
    """Rank 1 never makes it: rank 0 waits inside NCCL."""
    lib = library("cupy", pg)
    await well(pg, lib)
    if pg.rank == 0:
        making = asyncio.ensure_future(pg.new_group())
        await pg.send(np.zeros(1), 1)
        with pytest.raises(dist.GroupAborted, match="enough"):
            await making
    else:
        await pg.recv(np.zeros(1), 0)
        pg.abort("enough")
    async with await pg.rebuild() as again:
        await well(again, lib)


@spmd(world_size=2, backend=BACKEND, env=SHARED, exits={1: -9})
async def test_rank_that_dies_while_a_group_is_being_connected(pg: ProcessGroup) -> None:
    lib = library("cupy", pg)
    await well(pg, lib)
    if pg.rank == 1:
        await pg.recv(np.zeros(1), 0)
        os.kill(os.getpid(), 9)
    making = asyncio.ensure_future(pg.new_group())
    await pg.send(np.zeros(1), 1)
    with pytest.raises(dist.PeerLost, match="rank 1"):
        await making
    async with await pg.rebuild() as again:
        assert again.size == 1
        await well(again, lib)


@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_abort_in_a_message(pg: ProcessGroup) -> None:
    """The receiver's kernel waits for the sender's, and that for the sender's stream."""
    import cupy

    lib = library("cupy", pg)
    await well(pg, lib)
    tensor = lib.put(np.arange(1 << 20))
    await (pg.recv(tensor, 0) if pg.rank else pg.send(tensor, 1))  # connects
    if pg.rank == 0:
        with cupy.cuda.Stream(non_blocking=True):
            occupy(cupy, 5)
            work: Any = pg.send(tensor, 1, async_op=True)
    else:
        work = pg.recv(tensor, 0, async_op=True)
        await until_launched(work)
        pg.abort("enough")
    with pytest.raises(dist.GroupAborted, match="enough"):
        await work
    async with await pg.rebuild() as again:
        await well(again, lib)


@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_closing_a_group_beside_a_kernel_that_waits(pg: ProcessGroup) -> None:
    """Its communicator is destroyed later: that can wait for the kernel, and hold up what ends it."""
    import cupy

    lib, peer = library("cupy", pg), 1 - pg.rank
    other = await pg.new_group()
    assert other is not None
    await well(other, lib)
    tensor, word = lib.put(np.ones(3)), lib.put(np.zeros(3))
    await pg.all_reduce(tensor)
    await (pg.recv(word, peer) if pg.rank else pg.send(word, peer))
    if pg.rank == 0:
        work = pg.all_reduce(tensor, async_op=True)
        work.synchronize(cupy.cuda.Stream(non_blocking=True))  # it is launched
        await other.aclose()
        await pg.send(word, peer)
        await work
    else:
        await pg.recv(word, peer)
        await other.aclose()
        await pg.all_reduce(tensor)
    assert np.array_equal(lib.get(tensor), np.full(3, 4.0))


@spmd(world_size=2, backend=BACKEND, env=SHARED, timeout=240)
async def test_twenty_rebuilds_leave_nothing(pg: ProcessGroup) -> None:
    """Of healthy groups, and of aborted ones in turn: no thread, no descriptor, no memory of the device."""
    lib = library("cupy", pg)
    before: dict[str, int] = {}
    for i in range(REBUILDS + 2):
        await well(pg, lib)
        into = lib.put(np.zeros(9, np.int64))
        await (pg.recv(into, 0) if pg.rank else pg.send(into, 1))
        if i == 2:
            before = held()
        if i % 2:
            await passed_by_all(pg)
            if pg.rank == 0:
                pg.abort("again")
            with pytest.raises(dist.GroupAborted):
                await pg.barrier()
        pg = await pg.rebuild()
    await well(pg, lib)
    after = held()
    until = asyncio.get_running_loop().time() + 10
    while not within(before, after) and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.1)  # communicators are destroyed in the background
        after = held()
    agreed = await pg.all_gather_object((within(before, after), before, after))
    await pg.aclose()
    assert all(fine for fine, *_ in agreed), agreed


def held() -> dict[str, int]:
    """What this process holds, and how much of the device's memory is in use."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    cupy.cuda.Device().synchronize()
    free, total = cupy.cuda.runtime.memGetInfo()
    ours = sum(thread.name.startswith("aiodist") for thread in threading.enumerate())
    return {
        "threads": ours,
        "threads of libraries": len(os.listdir("/proc/self/task")) - threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "bytes": total - free,
    }


def within(before: dict[str, int], after: dict[str, int]) -> bool:
    """Whether nothing has grown with the number of rebuilds."""
    slack = {"threads": 4, "threads of libraries": 4, "descriptors": 8, "bytes": KEPT}
    return all(after[name] <= count + slack[name] for name, count in before.items())
