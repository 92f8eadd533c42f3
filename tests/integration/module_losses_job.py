"""Jobs that train elastically, and in which something is lost: `module_losses_job.py PART [FILE]`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import aiodist as dist


async def wrapped(pg: Any) -> tuple[Any, torch.Tensor]:
    """A module that trains, and its count of steps; not shared yet."""
    torch.manual_seed(pg.rank)
    done = torch.zeros((), dtype=torch.int64)
    ddp = dist.DistributedDataParallel(torch.nn.Linear(4, 3), pg, elastic=True, state=[done])
    return ddp, done


async def step(ddp: Any) -> None:
    """A forward and a backward pass."""
    ddp.zero_grad()
    ddp(torch.full((2, 4), 1.0 + ddp.pg.rank)).sum().backward()


async def cancelled(_: str) -> None:
    """A `sync` is cancelled, and then a rank dies: the next call says so."""
    pg = await dist.join()
    ddp, _done = await wrapped(pg)
    await ddp
    await step(ddp)
    assert await ddp.sync()
    await step(ddp)
    if pg.rank == 1:
        await pg.recv(torch.zeros(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    waits = asyncio.ensure_future(ddp.sync())
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait([waits])
    assert waits.cancelled()
    await pg.send(torch.zeros(1), 1)
    assert await ddp.sync() is False  # the cancelled one goes on without its caller; this waits for it
    await step(ddp)
    assert await ddp.sync()
    assert torch.equal(ddp.module.weight.grad, torch.full((3, 4), 2.0))
    print("went on", ddp.pg.size, flush=True)
    await ddp.pg.aclose()


async def orphaned(path: str) -> None:
    """Rank 1 dies, and comes anew; then the only one dies that could give it the parameters."""
    pg = await dist.join()
    ddp, done = await wrapped(pg)
    if pg.epoch == 0 and pg.rank == 0:
        share, shared = ddp._share, Path(path)

        async def shares_once() -> None:
            if shared.exists() and ddp.pg.size > 1:
                os.kill(os.getpid(), signal.SIGKILL)
            await share()
            shared.touch()

        ddp._share = shares_once
    await ddp
    while done < 40 or pg.epoch == 0:
        if pg.epoch == 0 and pg.rank == 1 and done == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        await step(ddp)
        if await ddp.sync():
            done += 1
    print("trained from nothing", flush=True)
    await ddp.pg.aclose()


if __name__ == "__main__":
    asyncio.run({"cancelled": cancelled, "orphaned": orphaned}[sys.argv[1]](sys.argv[2]))
