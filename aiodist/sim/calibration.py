"""Measures the constants of a simulation on this machine, with two real ranks: `aiodist sim --calibrate`.

The program of each rank, which the command starts as a job: `python -m aiodist.sim.calibration FILE`. First
the two talk over TCP, as ranks of two hosts do, then through shared memory. Each constant is one median, or
what is left of one after a constant that was measured before.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np

from aiodist.group import ProcessGroup
from aiodist.group.runtime.init import init_process_group
from aiodist.group.runtime.running import run
from aiodist.sim.constants import Constants, save

_OFTEN, _SOME = 500, 15  # samples of what is short, and of what is long
_MANY = 64
_RESTED, _REST = 100, 0.004  # samples before which ranks rest, and for how many seconds
_BYTES = 16 << 20


async def main(name: str) -> None:
    """Measure everything; rank 0 writes the file."""
    few, much = np.zeros(1), np.zeros(_BYTES // 8)
    os.environ["AIODIST_TRANSPORT"] = "tcp"
    async with await init_process_group() as pg:
        step = await _one_way(pg, [few], _OFTEN)
        many = await _one_way(pg, [np.zeros(1) for _ in range(_MANY)], _OFTEN)
        message = max(0.0, many - step) / (_MANY - 1)
        wake = max(0.0, await _one_way(pg, [few], _RESTED, _REST) - step)
        byte = max(0.0, await _one_way(pg, [much], _SOME) - step) / _BYTES
    os.environ["AIODIST_TRANSPORT"] = "shm"
    async with await init_process_group() as pg:
        local = await _median(pg, partial(pg.all_reduce, few), _OFTEN)
        local_byte = max(0.0, await _median(pg, partial(pg.broadcast, much), _SOME) - local) / _BYTES
        issue = await _issue(pg)
        if pg.rank == 0:
            save(Constants(step, wake, message, byte, local, local_byte, issue), name)


async def _one_way(pg: ProcessGroup, tensors: list[Any], samples: int, rest: float = 0.0) -> float:
    """Seconds for messages at once to the other rank: half of there and back. Ranks rest before."""

    async def there_and_back() -> None:
        for call in (pg.send, pg.recv) if pg.rank == 0 else (pg.recv, pg.send):
            works: list[Awaitable[Any]] = [
                call(tensor, 1 - pg.rank, tag=tag, async_op=True) for tag, tensor in enumerate(tensors)
            ]
            for work in works:
                await work

    return await _median(pg, there_and_back, samples, rest) / 2


async def _median(
    pg: ProcessGroup, once: Callable[[], Awaitable[Any]], samples: int, rest: float = 0.0
) -> float:
    """Seconds for a call, the first of which is not counted."""
    await once()
    await pg.barrier()
    taken = []
    for _ in range(samples):
        if rest:
            await pg.barrier()
            time.sleep(rest)  # noqa: ASYNC251 (the process is to sleep, not only a task)
        began = time.perf_counter()
        await once()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


async def _issue(pg: ProcessGroup) -> float:
    """Seconds until a call that does not wait has returned."""
    tensor, taken = np.zeros(1), []
    for _ in range(1000):
        began = time.perf_counter()
        work = pg.all_reduce(tensor, async_op=True)
        taken.append(time.perf_counter() - began)
        await work
    return statistics.median(taken)


if __name__ == "__main__":
    run(main(sys.argv[1]))
