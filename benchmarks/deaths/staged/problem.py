"""The program with a problem: each rank calls `main(name)`; rank 2 of 4 has it, mostly.

The line to which the verdict has to lead is marked by `# cause: <name>`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable

import numpy as np

import aiodist as dist
from aiodist import ProcessGroup

CULPRIT = 2
STEPS = 30


async def train(pg: ProcessGroup, steps: int = STEPS, seconds: float = 0.0) -> None:
    """Steps of computing for so long, and then adding up gradients."""
    gradients = np.full(1000, pg.rank + 1.0, np.float32)
    for _ in range(steps):
        compute(seconds)
        await pg.all_reduce(gradients)


def compute(seconds: float) -> None:
    """Compute, without the event loop."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def branches(pg: ProcessGroup) -> None:
    """One rank takes another branch, and calls something else."""
    await train(pg)
    half = await pg.new_group([0, 1, 2])
    if pg.rank == CULPRIT:
        assert half is not None
        await half.all_reduce(np.ones(3, np.float32))  # cause: branches
    await train(pg)


async def late(pg: ProcessGroup) -> None:
    """One rank waits for something that is no operation."""
    await train(pg)
    if pg.rank == CULPRIT:
        await asyncio.Event().wait()  # cause: late
    await train(pg)


def write_checkpoint() -> None:
    """Write for an hour."""
    time.sleep(3600)  # cause: blocked


async def blocked(pg: ProcessGroup) -> None:
    """One rank calls something that blocks its loop."""
    await train(pg)
    if pg.rank == CULPRIT:
        write_checkpoint()
    await train(pg)


async def held(pg: ProcessGroup) -> None:
    """One rank calls something in C that keeps the interpreter: here it is a regular expression."""
    await train(pg)
    if pg.rank == CULPRIT:
        re.match("(a+)+$", 60 * "a" + "b")  # cause: held
    await train(pg)


async def stopped(pg: ProcessGroup) -> None:
    """One rank is stopped."""
    await train(pg)
    if pg.rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGSTOP)  # cause: stopped
    await train(pg)


async def deadlock(pg: ProcessGroup) -> None:
    """Two ranks use two groups in opposite order."""
    first, second = await pg.new_group([1, 2]), await pg.new_group([2, 1])
    await train(pg)
    if pg.rank in (1, 2):
        assert first is not None
        assert second is not None
        one, other = (first, second) if pg.rank == 1 else (second, first)
        await one.barrier()  # cause: deadlock
        await other.barrier()
    await train(pg)


async def unreceived(pg: ProcessGroup) -> None:
    """One rank sends what nobody receives."""
    await train(pg)
    if pg.rank == CULPRIT:
        await pg.send(np.ones(1 << 22, np.float32), 1)  # cause: unreceived
    elif pg.rank == 1:
        await asyncio.Event().wait()


async def disk(pg: ProcessGroup) -> None:
    """One rank's callback, which writes a checkpoint and would have set an event, finds the disk full."""
    await train(pg)
    saved = asyncio.Event()

    def save() -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"checkpoint")  # cause: disk
        saved.set()

    if pg.rank == CULPRIT:
        asyncio.get_running_loop().call_soon(save)
        await saved.wait()
    await train(pg)


async def link(pg: ProcessGroup) -> None:
    """The cable of one rank's host is slower than the others'."""
    gradients = np.full(1 << 20, pg.rank + 1.0, np.float32)
    while True:
        await pg.all_reduce(gradients)  # cause: link


def rest(seconds: float) -> None:
    """Stand in for computing: there may be fewer cores than ranks."""
    time.sleep(seconds)


async def straggler(pg: ProcessGroup) -> None:
    """One rank computes for 20 % longer than the others."""
    gradients = np.full(1000, pg.rank + 1.0, np.float32)
    while True:
        rest(0.06 if pg.rank == CULPRIT else 0.05)
        await pg.all_reduce(gradients)  # cause: straggler


PROBLEMS: dict[str, Callable[[ProcessGroup], Awaitable[None]]] = {
    problem.__name__: problem
    for problem in (
        *(branches, late, blocked, held, stopped),
        *(deadlock, unreceived, disk, link, straggler),
    )
}


async def main(name: str) -> None:
    """Run one problem."""
    pg = await dist.init_process_group()
    await PROBLEMS[name](pg)
    await pg.barrier()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
