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
from typing import Any

import numpy as np

from aiodist.bench.calls import Bound, per_operation, timed
from aiodist.bench.cases import Case
from aiodist.bench.sweep import agree
from aiodist.group import ProcessGroup
from aiodist.runtime.init import init_process_group
from aiodist.runtime.running import run
from aiodist.sim.constants import Constants, save

_BUDGET = 0.5  # seconds for one constant
_MANY = 64
_FEW_BYTES, _BYTES = 8, 16 << 20


async def main(name: str) -> None:
    """Measure everything; rank 0 writes the file."""
    os.environ["AIODIST_TRANSPORT"] = "tcp"
    async with await init_process_group() as pg:
        step = await _seconds(pg, Case("p2p", _FEW_BYTES))
        message = max(0.0, await _many(pg) - step) / (_MANY - 1)
        byte = max(0.0, await _seconds(pg, Case("p2p", _BYTES)) - step) / _BYTES
    os.environ["AIODIST_TRANSPORT"] = "shm"
    async with await init_process_group() as pg:
        local = await _seconds(pg, Case("all_reduce", _FEW_BYTES))
        local_byte = max(0.0, await _seconds(pg, Case("broadcast", _BYTES)) - local) / _BYTES
        issue = await _issue(pg)
        if pg.rank == 0:
            save(Constants(step, message, byte, local, local_byte, issue), name)


async def _seconds(pg: ProcessGroup, case: Case) -> float:
    """The median of one operation."""
    bound = Bound(pg, case)
    await bound.prepare()
    samples, inner = await agree(pg, bound.once(), _BUDGET)
    await pg.barrier()
    return statistics.median(
        per_operation(case, taken) for taken in await timed(bound.once(), samples, inner)
    )


async def _many(pg: ProcessGroup) -> float:
    """Seconds for many short messages at once, one way."""
    tensors = [np.zeros(1) for _ in range(_MANY)]

    async def all_one_way(call: Callable[..., Any]) -> None:
        works: list[Awaitable[Any]] = [
            call(tensor, 1 - pg.rank, tag=tag, async_op=True) for tag, tensor in enumerate(tensors)
        ]
        for work in works:
            await work

    async def there_and_back() -> None:
        for call in (pg.send, pg.recv) if pg.rank == 0 else (pg.recv, pg.send):
            await all_one_way(call)

    samples, inner = await agree(pg, there_and_back, _BUDGET)
    await pg.barrier()
    return statistics.median(await timed(there_and_back, samples, inner)) / 2


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
