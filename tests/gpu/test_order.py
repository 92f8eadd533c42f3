"""What waits for what between two ranks: messages and streams, late ranks, collectives against messages."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.nccl import device
from aiodist.base.types import BFLOAT16
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from aiodist.testing.programs import same_bits
from tests.gpu.tensors import library, occupy, until_launched

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("several")]

BACKEND = "cpu:host,cuda:nccl"
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
COUNT = 100_000


@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_send_begins_after_what_the_callers_stream_was_given(pg: ProcessGroup) -> None:
    import cupy

    lib, peer = library("cupy", pg), 1 - pg.rank
    ready, tensor = lib.put(np.arange(COUNT) + pg.rank), lib.put(np.zeros(COUNT, np.int64))
    into = lib.put(np.zeros(COUNT, np.int64))
    for batch in (False, True):
        cupy.copyto(tensor, 0)
        cupy.cuda.Device().synchronize()
        async with pg.coalesce() if batch else nullcontext():
            with cupy.cuda.Stream(non_blocking=True):
                occupy(cupy)
                cupy.copyto(tensor, ready)
                sent = pg.send(tensor, peer, async_op=True)
        assert await pg.recv(into, peer) == peer
        await sent
        assert np.array_equal(lib.get(into), np.arange(COUNT) + peer)


@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_receive_writes_after_what_the_callers_stream_reads(pg: ProcessGroup) -> None:
    import cupy

    lib, peer = library("cupy", pg), 1 - pg.rank
    into, kept = lib.put(np.full(COUNT, -1 - pg.rank)), lib.put(np.zeros(COUNT, np.int64))
    cupy.cuda.Device().synchronize()
    sent = pg.send(lib.put(np.arange(COUNT) + pg.rank), peer, async_op=True)
    with cupy.cuda.Stream(non_blocking=True):
        occupy(cupy)
        cupy.copyto(kept, into)
        received = pg.recv(into, peer, async_op=True)
    await sent
    assert await received == peer
    assert np.array_equal(lib.get(into), np.arange(COUNT) + peer)
    assert np.array_equal(lib.get(kept), np.full(COUNT, -1 - pg.rank))


@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_one_rank_is_late_and_the_others_loop_turns(pg: ProcessGroup) -> None:
    """The kernel of rank 0 waits on the device, its host does not."""
    import cupy

    lib, peer, word = library("cupy", pg), 1 - pg.rank, np.zeros(1)
    await pg.all_reduce(lib.put(np.ones(3)))
    tensor = lib.put(np.arange(COUNT) * (pg.rank + 1))
    work = None
    if pg.rank == 0:
        work = pg.all_reduce(tensor, async_op=True)
        work.synchronize(cupy.cuda.Stream(non_blocking=True))  # it is launched
    for i in range(100):
        if work is not None:
            assert not work.done()
            await pg.send(np.array([float(i)]), peer)
            await pg.recv(word, peer)
            assert word[0] == i
        else:
            await pg.recv(word, peer)
            await pg.send(word, peer)
    await (pg.all_reduce(tensor) if work is None else work)
    assert np.array_equal(lib.get(tensor), np.arange(COUNT) * 3)


async def _crossed(pg: ProcessGroup, tensor: Any, word: Any, op: dist.ReduceOp = dist.ReduceOp.SUM) -> None:
    """Reduce, and send a word to rank 1. Rank 0 begins with the collective, rank 1 with the message."""
    if pg.rank == 0:
        work = pg.all_reduce(tensor, op, async_op=True)
        await pg.send(word, 1)
        await work
    else:
        await pg.recv(word, 0)
        await pg.all_reduce(tensor, op)


@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_first_message_of_all_against_a_collective(pg: ProcessGroup) -> None:
    """It makes a communicator and launches a kernel that this process has not launched before, both beside a
    kernel that waits."""
    lib = library("cupy", pg)
    sent, into = lib.put(np.arange(COUNT)), lib.put(np.zeros(COUNT, np.int64))
    tensor = lib.put(np.full(COUNT, 1.0 + pg.rank))
    await _crossed(pg, tensor, into if pg.rank else sent)
    assert not pg.rank or np.array_equal(lib.get(into), np.arange(COUNT))
    assert np.array_equal(lib.get(tensor), np.full(COUNT, 3.0))


@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_first_strided_tensors_beside_a_collective_that_waits(pg: ProcessGroup) -> None:
    """The driver loads a kernel only while the device is idle: what copies is loaded when a group opens."""
    lib = library("cupy", pg)
    base = np.arange(3 * COUNT, dtype=np.int16).reshape(3, COUNT) % 1000
    sent, into = lib.put(base, "strided"), lib.put(np.zeros_like(base), "F")
    tensor = lib.put(np.full((7, 9), 1 + pg.rank, np.int16), "F")
    await _crossed(pg, tensor, into if pg.rank else sent, dist.ReduceOp.BOR)
    assert not pg.rank or np.array_equal(lib.get(into), base)
    assert np.array_equal(lib.get(tensor), np.full((7, 9), 3, np.int16))


@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_collectives_against_messages(pg: ProcessGroup) -> None:
    """Rank 0 begins with the collective, rank 1 with the message. All kernels have run before."""
    lib, peer = library("cupy", pg), 1 - pg.rank
    sent, into = lib.put(np.arange(COUNT)), lib.put(np.zeros(COUNT, np.int64))
    tensor = lib.put(np.ones(COUNT))
    await pg.all_reduce(tensor)
    await (pg.recv(into, peer) if pg.rank else pg.send(sent, peer))
    for i in range(20):
        into, tensor = lib.put(np.zeros(COUNT, np.int64)), lib.put(np.full(COUNT, 1.0 + pg.rank + i))
        await _crossed(pg, tensor, into if pg.rank else sent)
        assert not pg.rank or np.array_equal(lib.get(into), np.arange(COUNT))
        assert np.array_equal(lib.get(tensor), np.full(COUNT, 3.0 + 2 * i))


@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_first_exchange_against_a_message(pg: ProcessGroup) -> None:
    """It connects, which waits for the other rank; the message that this waits for passes it."""
    lib, peer = library("cupy", pg), 1 - pg.rank
    mine, into = lib.put(np.arange(6) + 10 * pg.rank), lib.put(np.zeros(5, np.int64))
    if pg.rank == 0:
        work = pg.all_to_all(mine, async_op=True)
        await pg.send(lib.put(np.arange(5)), peer)
        got = await work
    else:
        await pg.recv(into, peer)
        assert np.array_equal(lib.get(into), np.arange(5))
        got = await pg.all_to_all(mine)
    expected = [np.arange(3) + 3 * pg.rank + 10 * source for source in range(2)]
    assert np.array_equal(lib.get(got), np.concatenate(expected))


@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_first_exchange_beside_a_receive_that_waits(pg: ProcessGroup) -> None:
    """It connects while rank 0's receive is on the device, and rank 1 has yet to launch the send. Where this
    does not end NCCL waits for that kernel: then `engine` says what it means."""
    lib, peer, held = library("cupy", pg), 1 - pg.rank, threading.Event()
    mine, into, sent = lib.put(np.arange(6) + 10 * pg.rank), lib.put(np.zeros(5, np.int64)), np.arange(5)
    await (pg.recv(into, peer) if pg.rank else pg.send(into, peer))
    message: Any
    if pg.rank == 0:
        message = pg.recv(into, peer, async_op=True)
        await until_launched(message)
    else:
        launchers = device._devices.get(pg.rank) or next(iter(device._devices.values()))
        launchers.messages.submit(partial(_wait, held))
        message = pg.send(lib.put(sent), peer, async_op=True)
    await pg.barrier()
    work = pg.all_to_all(mine, async_op=True)
    work.add_done_callback(lambda _: held.set())
    asyncio.get_running_loop().call_later(2, held.set)
    got = await work
    await message
    assert pg.rank or np.array_equal(lib.get(into), sent)
    expected = [np.arange(3) + 3 * pg.rank + 10 * source for source in range(2)]
    assert np.array_equal(lib.get(got), np.concatenate(expected))


def _wait(held: threading.Event) -> None:
    held.wait()


@pytest.mark.usefixtures("has")
@pytest.mark.parametrize("lib", ["cupy", "torch"])
@spmd(world_size=2, backend=BACKEND, env=SHARED)
async def test_halves_with_a_factor(pg: ProcessGroup, lib: str) -> None:
    """Multiplied in float32, and rounded once; these are exact."""
    tensors = library(lib, pg)
    for dtype in (np.dtype(np.float16), BFLOAT16):
        if not tensors.has(dtype):
            continue
        base = np.arange(-32, 32).astype(dtype)
        mine = tensors.put(base * dtype.type(pg.rank + 1))
        await pg.all_reduce(mine, dist.premul_sum(0.25 * (pg.rank + 1)))
        expected = (np.arange(-32, 32) * (0.25 + 1.0)).astype(dtype)
        assert same_bits(tensors.get(mine), expected)
