"""One training: a plan carried out in virtual time, and what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.epochs.regroup import regroup_of
from aiodist.testing import SimulationStuck, run_cluster, run_virtual
from tests.simulation.run import steady
from tests.support.chaos import Chaos
from tests.support.late_jobs import late_jobs
from tests.trainings.ledger import Ledger
from tests.trainings.plan import Plan
from tests.trainings.programs import Trainer

LIMIT = 900.0
"""Virtual seconds of a training; all waits in it together take less."""


def train(plan: Plan) -> Ledger:
    """Carry a plan out."""
    ledger, shelf = Ledger(), dict[int, list[Any]]()
    parts: dict[tuple[int, int], dict[int, Any]] = {}
    chaos = Chaos(plan.seed)

    async def main(pg: ProcessGroup) -> str:
        regroup = regroup_of(pg)
        assert regroup is not None
        number = next(one.number for one in chaos.processes if one.job is regroup.job)
        return await Trainer(plan, ledger, parts, shelf, number, number >= plan.size).run(pg)

    try:
        with steady(), late_jobs(plan.late) if plan.late else nullcontext():
            run_virtual(_bounded(plan, ledger, chaos, main))
    except (SimulationStuck, TimeoutError) as error:
        ledger.wrong(f"hang: {type(error).__name__}: {error}")
    return ledger


async def _bounded(
    plan: Plan, ledger: Ledger, chaos: Chaos, main: Callable[[ProcessGroup], Awaitable[str]]
) -> None:
    loop = asyncio.get_running_loop()

    def join(waits: float, dies: int) -> None:
        newcomer = chaos.join(main, waits)
        if dies:
            chaos.crash_at_step(newcomer.number, dies)

    async def first(pg: ProcessGroup) -> str:
        await asyncio.sleep(0.05)  # all members are there
        mortal = dict(plan.deaths)
        if pg.rank in mortal:
            chaos.crash_at_step(pg.rank, chaos.processes[pg.rank].steps + mortal[pg.rank])
        if pg.rank == 0:
            for number, (at, waits) in enumerate(plan.joins):
                loop.call_later(at, join, waits, 0 if number else plan.dies_joined)
        return await main(pg)

    async with asyncio.timeout(LIMIT):
        results = await run_cluster(plan.size, first, timeout=8.0, return_exceptions=True, processes=chaos)
    ends: list[Any] = [*results, *(await asyncio.gather(*chaos.joined, return_exceptions=True))]
    for process, end in zip(chaos.processes, ends, strict=True):
        words = end if isinstance(end, str) else f"{type(end).__name__}: {end}"
        if process.dead:
            words = "crashed"
        ledger.ends[process.number] = words
        ledger.note(loop.time(), process.number, f"ended: {words}")
        late = process.number >= plan.size and isinstance(end, dist.RendezvousError | dist.QuorumLost)
        if not (process.dead or late or isinstance(end, str)):
            ledger.wrong(f"process {process.number} ended by {words}")
    ledger.check(chaos.alive())
