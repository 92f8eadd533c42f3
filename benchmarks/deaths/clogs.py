"""Row 12: connections that clog, slow down and come free again. Nothing may fail, nothing may be wrong."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from benchmarks.deaths.figures import Figures
from benchmarks.deaths.ranks import reduce_until_broken
from benchmarks.deaths.scale import Scale
from tests.support.faults import Direction, Round, Stage, Victims

RANKS = 4
SIZES = (1 << 10, 256 << 10, 4 << 20)


async def counted(stage: Stage, nbytes: int, count: int) -> dict[str, Any]:
    """So many all_reduces, and an orderly end."""
    async with await stage.join() as pg:
        return await reduce_until_broken(stage, pg, nbytes, depth=4, count=count)


async def run(scale: Scale) -> list[Figures]:
    """Clog or throttle, every few milliseconds, another way of another connection for a while."""
    figures = Figures(12, "ways clogged 10 to 400 ms, or throttled to 20 MB/s", str(RANKS))
    count = scale.pick(30, 200, 400)
    chance = random.Random(scale.seed)
    faults = 0
    async with Victims(transport="tcp") as victims:
        for _ in scale.times(figures, scale.pick(1, 2, 20)):
            for nbytes in SIZES[: 2 if scale.quick else 3]:
                async with victims.round(counted, RANKS, detours=True, nbytes=nbytes, count=count) as round:
                    await round.all_say("running")
                    clogging = asyncio.create_task(_clog(round, chance))
                    outcomes = await round.outcomes(within=120)
                    clogging.cancel()
                    faults += await clogging
                    for rank, seen in figures.take(outcomes, round).items():
                        if seen["failed"] or seen["right"] != count:
                            figures.problem(f"rank {rank}: {seen}")
    figures.notes.append(f"{faults} faults")
    return [figures]


async def _clog(round: Round, chance: random.Random) -> int:
    """Clog until cancelled → how many faults there were."""
    assert round.detours is not None
    ways = [
        way for proxy in round.detours.of(range(RANKS), range(RANKS)) for way in (proxy.forth, proxy.back)
    ]
    faults = 0
    try:
        async with asyncio.TaskGroup() as tasks:
            while True:
                faults += 1
                tasks.create_task(_befall(chance.choice(ways), chance))
                await asyncio.sleep(chance.uniform(0.005, 0.05))
    except asyncio.CancelledError:
        return faults


async def _befall(way: Direction, chance: random.Random) -> None:
    try:
        if chance.random() < 0.7:
            way.clog()
        else:
            way.rate = 20e6
        await asyncio.sleep(chance.uniform(0.01, 0.4))
    finally:
        way.unclog()
        way.rate = None
