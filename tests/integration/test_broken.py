"""What breaks a group, on real processes: every rank is told who and what."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.levels import COSTLY, few

# Each test with one of them in the quick run.
OVER_SHM = pytest.mark.parametrize("transport", few(["shm", "tcp"], ["shm"]))
OVER_TCP = pytest.mark.parametrize("transport", few(["shm", "tcp"], ["tcp"]))


@pytest.mark.slow(COSTLY)
@OVER_TCP
@pytest.mark.parametrize("odd", few([0, 2], [2]))
@spmd(world_size=3)
async def test_mismatch_on_every_rank(pg: ProcessGroup, odd: int, transport: str) -> None:
    """Each kind of it in a group of its own, and the last one in the world's."""
    mine = pg.rank == odd
    calls: dict[str, Callable[[ProcessGroup], Any]] = {
        "large shape": lambda group: group.all_reduce(np.zeros(10**6 * (1 + mine))),
        "dtype": lambda group: group.all_reduce(np.zeros(4, np.int64 if mine else np.float64)),
        "op": lambda group: group.barrier() if mine else group.all_reduce(np.zeros(4)),
        "reduce op": lambda group: group.all_reduce(
            np.zeros(4), dist.ReduceOp.MIN if mine else dist.ReduceOp.SUM
        ),
        "shape": lambda group: group.all_reduce(np.zeros(4 + mine)),
    }
    for what, call in calls.items():
        group = pg if what == "shape" else await pg.new_group()
        assert group is not None
        with pytest.raises(dist.CollectiveMismatch) as caught:
            await call(group)
        said = caught.value.said
        assert set(said) == {0, 1, 2}, what
        assert len({said[rank] for rank in said if rank != odd}) == 1, what
        assert said[odd] != said[(odd + 1) % 3], what


async def _die_in_a_loop_of_all_reduces(pg: ProcessGroup, victim: int, count: int) -> None:
    tensor = np.zeros(count, np.float32)
    if pg.rank == victim:
        await pg.all_reduce(tensor)
        pg.all_reduce(tensor, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.PeerLost) as caught:
        while True:
            await pg.all_reduce(tensor)
    assert caught.value.ranks == (victim,)
    assert caught.value.op == "all_reduce"
    assert caught.value.seq is not None
    with pytest.raises(dist.PeerLost):  # and every later one
        await pg.barrier()


@pytest.mark.slow(COSTLY)
@OVER_SHM
@pytest.mark.parametrize("count", few([100, 4_000_000], [4_000_000]))
@spmd(world_size=4, exits={1: -signal.SIGKILL})
async def test_killed_peer_is_named_on_every_survivor(pg: ProcessGroup, count: int, transport: str) -> None:
    await _die_in_a_loop_of_all_reduces(pg, 1, count)


@pytest.mark.slow(COSTLY)
@OVER_TCP
@spmd(world_size=3, exits={0: -signal.SIGKILL})
async def test_killed_rank_0_is_named_on_every_survivor(pg: ProcessGroup, transport: str) -> None:
    await _die_in_a_loop_of_all_reduces(pg, 0, 10_000)


@pytest.mark.slow(COSTLY)
@OVER_SHM
@spmd(world_size=3, exits={2: 7})
async def test_peer_that_exits_mid_operation_is_lost_at_once(pg: ProcessGroup, transport: str) -> None:
    if pg.rank == 2:
        for survivor in (0, 1):  # who says this has left init_process_group
            await pg.recv(np.zeros(1), survivor)
        os._exit(7)
    await pg.send(np.zeros(1), 2)
    with pytest.raises(dist.PeerLost) as caught:
        await pg.all_reduce(np.arange(1000.0))
    assert caught.value.ranks == (2,)
    assert "has not run" not in caught.value.cause  # its end was seen, and not its silence


@OVER_TCP
@spmd(world_size=2, exits={1: -signal.SIGKILL})
async def test_endless_all_reduce_lets_others_run_and_notices_a_dead_peer(
    pg: ProcessGroup, transport: str
) -> None:
    ticks = 0

    async def other() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    if pg.rank == 1:
        # Rank 0 says in the sum that its other task has had its turns; without them, this never ends.
        tensor = np.zeros(4)
        while tensor[0] <= 10:
            tensor[:] = 0
            await pg.all_reduce(tensor)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.PeerLost):
        while True:
            await pg.all_reduce(np.full(4, float(ticks)))
    task.cancel()


@spmd(world_size=1)
async def test_endless_all_reduce_alone_lets_others_run(pg: ProcessGroup) -> None:
    # A world of one never waits: only the await that yields keeps the loop turning.
    ran = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, ran.set)
    while not ran.is_set():
        await pg.all_reduce(np.zeros(4))


@pytest.mark.slow(COSTLY)
@spmd(world_size=3)
async def test_exception_in_async_with_reaches_the_others(pg: ProcessGroup) -> None:
    child = await pg.new_group()
    assert child is not None
    if pg.rank == 1:
        with pytest.raises(ValueError, match="bad batch"):
            async with child:
                raise ValueError("bad batch")
    else:
        with pytest.raises(dist.GroupAborted, match="rank 1 aborted the group: ValueError: bad batch"):
            await child.all_reduce(np.zeros(3))
    await pg.barrier()


@pytest.mark.slow(COSTLY)
@spmd(world_size=2)
async def test_child_of_a_fork_has_no_group(pg: ProcessGroup) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pg.barrier()
        except dist.GroupClosed:
            os.write(write, b"closed")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"closed"
    os.close(read)
    os.close(write)
    await pg.barrier()
