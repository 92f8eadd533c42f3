"""How the loss of a rank is noticed, on real processes and networks: at once, by its host's silence, its own.

Bounds are the tests' time limits; how long it takes is measured elsewhere (`benchmarks`).
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import signal
import subprocess

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from aiodist.testing.channel_pair import turn_until

TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])
COUNT = 100
SHORT = {"AIODIST_EVICT_AFTER": "2"}


async def pids(pg: ProcessGroup) -> list[int]:
    """Everybody's process id, by rank."""
    return [int(pid) for pid in (await pg.all_gather(np.array([os.getpid()])))[:, 0]]


async def until_lost(pg: ProcessGroup) -> dist.PeerLost:
    """Reduce until somebody is lost."""
    tensor = np.zeros(COUNT, np.float32)
    with pytest.raises(dist.PeerLost) as caught:
        while True:
            await pg.all_reduce(tensor)
    return caught.value


# ── at once ──────────────────────────────────────────────────────────────────────────────────────────────


@spmd(world_size=3, exits={1: -signal.SIGKILL})
async def test_a_child_that_holds_the_sockets_of_the_dead_delays_nothing(pg: ProcessGroup) -> None:
    child = 0
    if pg.rank == 1:
        child = os.fork()
        if not child:
            signal.alarm(60)
            signal.pause()
            os._exit(0)
    numbers = await pg.all_gather(np.array([os.getpid(), child]))
    if pg.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    lost = await until_lost(pg)
    try:
        assert lost.ranks == (1,)
        assert lost.cause == f"process {numbers[1, 0]} ended"
        assert lost.silence is not None
        if pg.rank == 0:
            os.kill(int(numbers[1, 1]), 0)  # the child lives, and with it the connections
        # Whoever has it from others sees it for itself, too.
        await turn_until(lambda: pg._control.core.proven == {1})
    finally:
        if pg.rank == 0:
            os.kill(int(numbers[1, 1]), signal.SIGKILL)


@TRANSPORTS
@spmd(world_size=4, exits={2: -signal.SIGKILL})
async def test_the_last_words_of_a_process_are_heard(pg: ProcessGroup, transport: str) -> None:
    if pg.rank == 2:
        for other in (0, 1, 3):  # who says this has left init_process_group
            await pg.recv(np.zeros(1), other)
        pg.abort("the data is bad")
        os.kill(os.getpid(), signal.SIGKILL)
    pg.send(np.zeros(1), 2, async_op=True)
    with pytest.raises(dist.GroupAborted, match="the data is bad"):
        await pg.all_reduce(np.zeros(100))


# ── its loop does not turn ───────────────────────────────────────────────────────────────────────────────


async def stop_and_go(pg: ProcessGroup, victim: int, late: bool) -> None:
    """A rank is stopped in the middle of an operation, for longer than the limit."""
    pid = (await pids(pg))[victim]
    if pg.rank == victim:
        work = pg.all_reduce(np.zeros(COUNT, np.float32), async_op=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(dist.Evicted, match="the others count this process as lost: its event loop"):
            await work
            while True:  # it was complete when the others had all they needed of it
                await pg.all_reduce(np.zeros(COUNT, np.float32))
        with pytest.raises(dist.Evicted):
            await pg.barrier()
        assert pg._control.core.lost.keys() == {victim}
        return
    if pg.rank == 0 and late:
        atexit.register(os.kill, pid, signal.SIGCONT)
    lost = await until_lost(pg)
    assert lost.ranks == (victim,)
    assert lost.cause.startswith("its event loop has not turned for 2 s")
    assert lost.silence is not None
    assert lost.silence >= 2
    assert pg._control.core.proven == set()
    if pg.rank == 0 and not late:
        os.kill(pid, signal.SIGCONT)


@TRANSPORTS
@pytest.mark.parametrize("late", [False, True])
@spmd(world_size=3, env=SHORT)
async def test_a_stopped_rank_is_lost_and_learns_of_it_when_it_goes_on(
    pg: ProcessGroup, late: bool, transport: str
) -> None:
    await stop_and_go(pg, 2, late)


@spmd(world_size=4, hosts=2, env=SHORT)
async def test_a_stopped_rank_of_another_host(pg: ProcessGroup) -> None:
    await stop_and_go(pg, 3, late=False)


@TRANSPORTS
@spmd(world_size=3)
async def test_a_call_that_holds_the_interpreter_evicts_nobody(pg: ProcessGroup, transport: str) -> None:
    for _ in range(3):
        await pg.all_reduce(np.zeros(10))
    work = pg.all_reduce(np.full(10, pg.rank), async_op=True)
    if pg.rank == 1:
        pg.all_reduce(np.zeros(10), async_op=True)
        ctypes.PyDLL(None).sleep(5)  # PyDLL: with the interpreter held
        await work
    else:
        await work
        pg.all_reduce(np.zeros(10), async_op=True)
    assert (await pg.all_reduce(np.full(4, pg.rank)))[0] == 3
    assert not pg._control.core.lost


# ── its host does not answer ─────────────────────────────────────────────────────────────────────────────


def lose_packets(way: str) -> list[list[str]]:
    """Commands that make the network between two hosts a black hole, run on the first one or the second, and
    those that end that. Packets vanish without a word; nobody resets anything."""
    if way == "both ways":
        return [["ip", "link", "set", "port1", "down"], ["ip", "link", "set", "port1", "up"]]
    network = os.environ["MASTER_ADDR"].rpartition(".")[0]
    other = f"{network}.{2 if way == 'there' else 1}"
    entry = [other, "dev", "eth0"]  # what this host believes to be the other's hardware address
    nobody = ["lladdr", "02:00:00:00:00:00", "nud", "permanent"]
    return [["ip", "neigh", "replace", *entry, *nobody], ["ip", "neigh", "del", *entry]]


@pytest.mark.parametrize("way", ["both ways", "there", "back"])
@spmd(world_size=4, hosts=2)
async def test_black_hole(pg: ProcessGroup, way: str) -> None:
    cutter, partner = 2 if way == "back" else 0, (pg.rank + 2) % 4
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, told.set)
    pid = (await pids(pg))[partner]
    cut, heal = lose_packets(way)
    if pg.rank == cutter:
        for other in {0, 1, 2, 3} - {cutter}:  # who says this knows its partner
            await pg.recv(np.zeros(1), other)
        subprocess.run(cut, check=True)
    else:
        pg.send(np.zeros(1), cutter, async_op=True)
    lost = await until_lost(pg)
    os.kill(pid, signal.SIGUSR2)  # there is a way around the network
    await told.wait()
    if pg.rank == cutter:
        subprocess.run(heal, check=True)
    assert lost.ranks
    assert all(rank // 2 != pg.rank // 2 for rank in lost.ranks)
    assert lost.silence is not None
    if way == "both ways":
        assert lost.cause.startswith("its host does not answer (no acknowledgement for over ")
