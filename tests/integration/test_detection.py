"""How the loss of a rank is noticed, on real processes and networks: at once, by its host's silence, its own.

Bounds are the tests' time limits; how long it takes is measured elsewhere (`benchmarks`).
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import logging
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.control.liveness import PATIENCE
from aiodist.testing import spmd
from aiodist.testing.ranks import launch
from tests.helpers import core_of
from tests.levels import COSTLY, MORE, few
from tests.support.channel_pair import turn_until

# Each test with one of them in the quick run: it is noticed in the same way over the other.
OVER_SHM = pytest.mark.parametrize("transport", few(["shm", "tcp"], ["shm"]))
OVER_TCP = pytest.mark.parametrize("transport", few(["shm", "tcp"], ["tcp"]))
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
        child = ctypes.PyDLL(None).fork()  # as a C library's: Python's own fork leaves it no socket of ours
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
        await turn_until(lambda: core_of(pg).control.core.proven == {1})
    finally:
        if pg.rank == 0:
            os.kill(int(numbers[1, 1]), signal.SIGKILL)


@pytest.mark.slow(COSTLY)
@OVER_SHM
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


# ── it is stopped ────────────────────────────────────────────────────────────────────────────────────────


async def stop_and_go(pg: ProcessGroup, victim: int, late: bool) -> None:
    """A rank is stopped in the middle of an operation, for longer than the limit."""
    pid = (await pids(pg))[victim]
    if pg.rank == victim:
        work = pg.all_reduce(np.zeros(COUNT, np.float32), async_op=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(dist.Evicted, match="the others count this process as lost: it was stopped"):
            await work
            while True:  # it was complete when the others had all they needed of it
                await pg.all_reduce(np.zeros(COUNT, np.float32))
        with pytest.raises(dist.Evicted):
            await pg.barrier()
        assert core_of(pg).control.core.lost.keys() == {victim}
        return
    if pg.rank == 0 and late:
        atexit.register(os.kill, pid, signal.SIGCONT)
    lost = await until_lost(pg)
    assert lost.ranks == (victim,)
    assert lost.cause == "it was stopped for 2 s (by a signal or a debugger)"
    assert lost.silence is not None
    assert lost.silence >= 2
    assert core_of(pg).control.core.proven == set()
    if pg.rank == 0 and not late:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow(COSTLY)
@OVER_TCP
@pytest.mark.parametrize("late", few([False, True], [True]))
@spmd(world_size=3, env=SHORT)
async def test_a_stopped_rank_is_lost_and_learns_of_it_when_it_goes_on(
    pg: ProcessGroup, late: bool, transport: str
) -> None:
    await stop_and_go(pg, 2, late)


@pytest.mark.slow(MORE)
@spmd(world_size=4, hosts=2, env=SHORT)
async def test_a_stopped_rank_of_another_host(pg: ProcessGroup) -> None:
    await stop_and_go(pg, 3, late=False)


# ── its loop does not turn ───────────────────────────────────────────────────────────────────────────────

QUICK = {
    "AIODIST_HEARTBEAT": "0.05",
    "AIODIST_WARN_AFTER": "0.3",
    "AIODIST_EVICT_AFTER": "0.5",
    "AIODIST_EVICT_SILENT_AFTER": "600",
}
LONG = 2.0
"""Seconds in which a loop does not turn: four times as long as a process may be stopped."""


class Warnings(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._changed = asyncio.Event()
        logging.getLogger("aiodist").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.said.append(record.getMessage())
            self._changed.set()

    async def until(self, pattern: str) -> None:
        """Return when something was said."""
        while not any(re.fullmatch(pattern, words) for words in self.said):
            self._changed.clear()
            await self._changed.wait()


def evaluate(seconds: float) -> None:
    """A long step in the loop's thread."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))


def hold(seconds: float) -> None:
    """A long step in the loop's thread that no other thread can run beside."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # PyDLL: with the interpreter held


async def block(pg: ProcessGroup, how: str) -> None:
    """One rank is busy for long while the others wait for it; then all goes on."""
    warnings, step = Warnings(), evaluate if how == "blocked" else hold
    over = Path(await pg.broadcast_object(tempfile.mktemp()))
    for _ in range(3):
        await pg.all_reduce(np.zeros(10))
    work = pg.all_reduce(np.full(10, pg.rank), async_op=True)
    if pg.rank == 1:
        ahead = pg.all_reduce(np.zeros(10), async_op=True)
        step(LONG)  # between two operations that the others have seen
        await work
        await ahead
    else:
        await work
        await pg.all_reduce(np.zeros(10))
    barrier = None
    if pg.rank == 1:
        step(LONG)  # and before one that they wait for, until they have been told
        while not over.exists():
            step(LONG)
    elif pg.rank == 0:
        barrier = pg.barrier(async_op=True)
        why = r"\S*test_detection\.py:\d+ in \w+" if how == "blocked" else "a call holds its interpreter"
        about = r"rank 1 \(\S+\) has not run its event loop"
        await warnings.until(rf"{about} for [\d.]+ s: {why}; group 'world' waits")
        over.touch()
    await (barrier or pg.barrier())
    assert (await pg.all_reduce(np.full(4, pg.rank)))[0] == sum(range(pg.size))
    assert not core_of(pg).control.core.lost
    if pg.rank == 0:
        over.unlink()
    await turn_until(lambda: not core_of(pg).control.blocked())
    await pg.barrier()


HOWS = pytest.mark.parametrize("how", few(["blocked", "held"], ["held"]))


@pytest.mark.slow(COSTLY)
@OVER_TCP
@HOWS
@spmd(world_size=3, env=QUICK)
async def test_a_long_step_evicts_nobody_and_who_waits_is_told(
    pg: ProcessGroup, how: str, transport: str
) -> None:
    await block(pg, how)


@pytest.mark.slow(MORE)
@HOWS
@spmd(world_size=4, hosts=2, env=QUICK)
async def test_a_long_step_on_another_host(pg: ProcessGroup, how: str) -> None:
    await block(pg, how)


@pytest.mark.slow(MORE)
@spmd(world_size=3, env=QUICK)
async def test_all_ranks_are_busy_at_once(pg: ProcessGroup) -> None:
    await pg.barrier()
    evaluate(LONG)
    await pg.barrier()
    (evaluate if pg.rank else hold)(LONG)
    assert (await pg.all_reduce(np.full(4, pg.rank)))[0] == 3
    assert not core_of(pg).control.core.lost
    await turn_until(lambda: not core_of(pg).control.blocked())
    await pg.barrier()


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, env=QUICK)
async def test_a_receive_says_whose_loop_does_not_turn(pg: ProcessGroup) -> None:
    over = Path(await pg.broadcast_object(tempfile.mktemp()))
    await pg.barrier()
    if pg.rank == 1:
        while not over.exists():
            evaluate(LONG)
        await pg.send(np.arange(3.0), 0)
        return
    warnings = Warnings()
    work = pg.recv(np.zeros(3), 1, async_op=True)
    why = r"rank 1 \(\S+\) has not run its event loop for [\d.]+ s: \S*test_detection\.py:\d+ in \w+"
    await warnings.until(f"{why}; group 'world' waits")
    assert re.fullmatch(f"<Work recv #0 pending: {why}>", repr(work))
    over.touch()
    assert await work == 1
    over.unlink()


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, env=QUICK)
async def test_an_operations_own_deadline_holds_and_says_whose_loop_does_not_turn(pg: ProcessGroup) -> None:
    await pg.barrier()
    if pg.rank == 0:
        evaluate(LONG)
        with pytest.raises(dist.CollectiveTimeout, match="of waiting for rank 0, this process"):
            while True:  # who is late finds what the others had said in time
                await pg.barrier()
        return
    with pytest.raises(dist.CollectiveTimeout) as caught:
        await pg.barrier(timeout=LONG / 2)
    assert (caught.value.missing, caught.value.unheard) == ((), (0,))
    words = r"within 1 s: rank 0 did not answer; rank 0 \(\S+\) has not run its event loop for [\d.]+ s: \S+"
    assert re.search(words, str(caught.value))
    assert not core_of(pg).control.core.lost


JOB = str(Path(__file__).parent / "silent_job.py")


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("ending", few(["held", "given up"], ["given up"]))
async def test_where_nobody_sees_the_process_silence_is_given_minutes(ending: str) -> None:
    """As between hosts with one rank each: the processes cannot look at each other."""
    env = {**QUICK, "AIODIST_TRANSPORT": "tcp"}
    if ending == "given up":
        env["AIODIST_EVICT_SILENT_AFTER"] = "1"
    outcomes = await launch([JOB, ending], 2, timeout=60, env=env)
    assert [outcome.code for outcome in outcomes] == [0, 0], [outcome.output for outcome in outcomes]
    words = "it gives no sign of life: it is stopped, or a call holds its interpreter; group 'world' waits"
    assert words in outcomes[0].output


@pytest.mark.slow(COSTLY)
async def test_a_loop_that_is_closed_with_its_groups_open_is_lost() -> None:
    outcomes = await launch([JOB, "closed"], 2, timeout=60, env={"AIODIST_HEARTBEAT": "0.05"})
    assert [outcome.code for outcome in outcomes] == [0, 0], [outcome.output for outcome in outcomes]


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


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("way", few(["both ways", "there", "back"], ["both ways"]))
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


@pytest.mark.slow(MORE)
@spmd(world_size=2, hosts=2, env={**QUICK, "AIODIST_WARN_AFTER": "300"})
async def test_black_hole_around_a_host_whose_loop_is_blocked(pg: ProcessGroup) -> None:
    """Nobody pings it any more, and nobody waits for it; the kernels ask each other."""
    seen = Path(await pg.broadcast_object(tempfile.mktemp()))
    if pg.rank == 1:
        while not seen.exists():
            evaluate(0.05)
        seen.unlink()
        with pytest.raises((dist.PeerLost, dist.Evicted)):
            await pg.barrier()
        return
    await asyncio.sleep(3 * PATIENCE * 0.05)
    cut, heal = lose_packets("both ways")
    subprocess.run(cut, check=True)
    await turn_until(lambda: bool(core_of(pg).control.core.lost))
    with pytest.raises(dist.PeerLost) as caught:
        await pg.barrier()
    assert caught.value.cause.startswith("its host does not answer (no acknowledgement for over ")
    subprocess.run(heal, check=True)
    seen.touch()
