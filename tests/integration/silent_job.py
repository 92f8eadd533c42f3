"""Two ranks, of which one falls silent: they cannot look at each other's processes, or a loop ends.

The first argument says which: held, given up, closed.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import sys
import threading

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.control.watchdog import ENDED
from aiodist.group.epochs import world

HOW = sys.argv[1]
kept: list[ProcessGroup] = []  # or its connections would end with the last that knows it


async def main() -> None:
    """Rank 1 falls silent; rank 0 waits for it."""
    pg = await dist.init_process_group(timeout=30)
    kept.append(pg)
    await pg.barrier()
    if pg.rank == 1:
        if HOW == "closed":
            return  # and with it the loop
        ctypes.PyDLL(None).usleep(2_500_000)  # with the interpreter held
    if HOW == "held":
        await pg.barrier()
        await pg.aclose()
        return
    with pytest.raises(dist.PeerLost if pg.rank == 0 else dist.Evicted) as caught:
        while True:
            await pg.barrier()
    assert (ENDED if HOW == "closed" else "it gave no sign of life for 1 s") in str(caught.value)
    if isinstance(caught.value, dist.PeerLost):
        assert caught.value.ranks == (1,)
    pg.abort("seen")
    await pg.aclose()


logging.basicConfig(level=logging.INFO)
if HOW != "closed":
    world.pid_space = lambda: ""  # type: ignore[attr-defined]
asyncio.run(main())
if HOW == "closed" and os.environ["RANK"] == "1":  # the process lives on
    for thread in threading.enumerate():
        if thread.name == "aiodist watchdog":
            thread.join()
