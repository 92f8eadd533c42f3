"""A job for the page's tests: ranks that print, wait for a slow one, and stop or fail when told to.

job.py SECONDS [stalls|fails|killed]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import numpy as np

import aiodist as dist

TITLE = "\x1b]0;owned\x07\x1b[31mred\x1b[0m <img src=x onerror=document.title='owned'>"


async def main() -> None:
    """Run it."""
    seconds, how = float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    group = await dist.init_process_group()
    values = np.full(1000, group.rank + 1.0, np.float32)
    until = time.monotonic() + seconds
    going = np.ones(1, np.float32)
    step = 0
    while going[0] > 0:
        await asyncio.sleep(0.02)
        await group.all_reduce(values)
        if group.rank == 0:
            await group.send(values, 1)
        elif group.rank == 1:
            await group.recv(values, 0)
        if step % 10 == 0:
            print(f"rank {group.rank} is at step {step} {TITLE}", flush=True)
        step += 1
        going[0] = time.monotonic() < until
        await group.broadcast(going, src=0)
    if how == "stalls" and group.rank == 2:
        time.sleep(60)  # cause
    if how == "killed" and group.rank == 1:
        await asyncio.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "fails" and group.rank == 1:
        await asyncio.sleep(0.3)
        os._exit(7)
    await group.barrier()
    await dist.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main())
