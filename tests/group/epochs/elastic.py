"""Jobs whose members change, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from tests.support.chaos import Chaos

Main = Callable[[ProcessGroup], Awaitable[Any]]


def run(size: int, main: Main, chaos: Chaos | None = None, timeout: float = 5.0) -> list[Any]:
    """What each rank returned; what one raised is raised."""
    made = Chaos() if chaos is None else chaos
    return run_virtual(run_cluster(size, main, processes=made, timeout=timeout))


def crash(chaos: Chaos, number: int, after: float = 0.05) -> None:
    asyncio.get_running_loop().call_later(after, chaos.crash, number)


async def total(pg: ProcessGroup) -> int:
    """A sum that shows who takes part."""
    tensor = np.array([1 << pg.rank], np.int64)
    await pg.all_reduce(tensor)
    return int(tensor[0])


async def until_broken(pg: ProcessGroup) -> dist.GroupBroken:
    while True:
        try:
            await total(pg)
        except dist.GroupBroken as error:
            return error


def now() -> float:
    return asyncio.get_running_loop().time()


async def work_until(pg: ProcessGroup, end: float) -> int:
    """Go on, whoever dies. → the last epoch."""
    while now() < end:
        try:
            await total(pg)
            await asyncio.sleep(0.05)
        except dist.GroupBroken:
            pg = await pg.rebuild(timeout=1)
    return pg.epoch


async def unreached(pg: ProcessGroup) -> None:
    raise AssertionError("it was admitted")
