"""The measurements of `aiodist bench` on one group, collective by collective; every rank runs this."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np

from aiodist.base.types import ReduceOp
from aiodist.cli.bench.calls import Bound, Once, UnavailableError, per_operation, timed
from aiodist.cli.bench.cases import Case
from aiodist.cli.bench.lateness import Ticker
from aiodist.cli.bench.measures import repeats, spread
from aiodist.group import ProcessGroup

_WARM_UP = 3
_BUDGET = 0.25  # seconds for one line of the table


@dataclass(frozen=True)
class SweepLine:
    """One measured case: seconds per operation on this rank."""

    what: str
    nbytes: int
    seconds: float
    low: float
    high: float


def cases(kinds: Sequence[str], sizes: Sequence[int]) -> list[Case]:
    """The cases that a sweep measures, in order; a barrier has no size."""
    sized = [Case(kind, nbytes) for kind in kinds if kind != "barrier" for nbytes in sizes]
    return sized + [Case("barrier")] * ("barrier" in kinds)


async def sweep(
    pg: ProcessGroup, wanted: Sequence[Case], budget: float = _BUDGET
) -> AsyncIterator[tuple[Case, SweepLine | None]]:
    """Measure each case; yields it with None before, and with its line after. What the group cannot do
    has no line."""
    for case in wanted:
        yield case, None
        bound = Bound(pg, case)
        try:
            await bound.prepare()
        except UnavailableError:
            continue
        samples, inner = await agree(pg, bound.once(), budget)
        await pg.barrier()
        taken = await timed(bound.once(), samples, inner)
        found = spread([per_operation(case, seconds) for seconds in taken])
        yield case, SweepLine(case.what, case.nbytes, found.median, found.low, found.high)


async def agree(pg: ProcessGroup, once: Once, budget: float) -> tuple[int, int]:
    """(samples, operations in each) for an operation, by what it takes the slowest rank; warms up, too."""
    plan = (1, _WARM_UP)
    for last in (False, True):
        await pg.barrier()
        slowest = np.array([max(await timed(once, *plan))])
        await pg.all_reduce(slowest, ReduceOp.MAX)
        samples, inner = repeats(float(slowest[0]), budget)
        plan = (samples, inner) if last else (1, min(inner, 1000))
    return plan


async def lateness(pg: ProcessGroup, nbytes: int, seconds: float) -> list[float]:
    """The lateness of a 1 ms ticker on this rank's loop during all_reduces, for about so many seconds."""
    tensor = np.zeros(max(1, nbytes // 4), np.float32)
    await pg.all_reduce(tensor)  # its memory is there, and so are the engine's buffers
    ticker = Ticker()
    ticker.start()
    until = time.perf_counter() + seconds
    going = np.ones(1)
    while going[0]:
        await pg.all_reduce(tensor)
        going[0] = time.perf_counter() < until
        await pg.broadcast(going)
    return ticker.stop()
