"""Many small all_reduces in flight in several groups at once, and how late the loop is meanwhile."""

from __future__ import annotations

import asyncio
import time

import numpy as np

import aiodist as dist
from aiodist.cli.bench.lateness import Ticker

_ELEMENTS = 256  # 1 KiB


async def load(pg: dist.ProcessGroup, groups: int, each: int, seconds: float) -> tuple[list[float], float]:
    """Keep `each` all_reduces of 1 KiB in flight in each of some groups of all ranks, for about so long.

    Returns:
        The lateness of each tick of a 1 ms ticker, and seconds for one all_reduce.
    """
    several = [await pg.new_group(name=f"load {number}") for number in range(groups)]
    found = [group for group in several if group is not None]
    try:
        for group in found:
            await _in_flight(group, each, 0.0)  # its plans are made
        await pg.barrier()
        ticker = Ticker()
        ticker.start()
        began = time.perf_counter()
        rounds = await asyncio.gather(*(_in_flight(group, each, seconds) for group in found))
        taken = time.perf_counter() - began
        late = ticker.stop()
    finally:
        for group in found:
            await group.aclose()
    return late, taken / (sum(rounds) * each)


async def _in_flight(group: dist.ProcessGroup, each: int, seconds: float) -> int:
    """Rounds of so many at once until the first rank says that it is time → how many rounds."""
    rows = [np.full(_ELEMENTS, number, np.float32) for number in range(each)]
    until = time.perf_counter() + seconds
    going, rounds = np.ones(1), 0
    while going[0]:
        rounds += 1
        works = [group.all_reduce(row, dist.ReduceOp.MAX, async_op=True) for row in rows]
        for work in works:
            await work
        going[0] = time.perf_counter() < until
        await group.broadcast(going)
    for number, row in enumerate(rows):
        assert row[0] == row[-1] == number
    return rounds
