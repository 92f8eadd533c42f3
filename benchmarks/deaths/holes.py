"""Row 5: a host that the network swallows. No reset, no message, no acknowledgement."""

from __future__ import annotations

import asyncio
import random
import time

from aiodist.testing.hosts import Hosts
from benchmarks.deaths.figures import Figures
from benchmarks.deaths.ranks import linger
from benchmarks.deaths.scale import Scale
from tests.support.faults import Partition, Victims

HOSTS = 3
BAR = 1500.0


async def run(scale: Scale) -> list[Figures]:
    """One of three hosts falls into a hole, in the middle of all_reduces or between two."""
    found = []
    chance = random.Random(scale.seed)
    with Hosts(HOSTS) as hosts:
        partition = Partition(hosts)
        async with Victims(hosts=hosts) as victims:
            for number, (nbytes, name) in enumerate(((1 << 10, "1 KiB"), (4 << 20, "4 MiB"))):
                for one_way in (bool(number),) if scale.quick else (False, True):
                    direction = "what it sends vanishes" if one_way else "nothing comes or goes"
                    figures = Figures(5, f"all_reduces of {name}, {direction}", str(HOSTS), bar=BAR)
                    found.append(figures)
                    for _ in scale.times(figures, scale.pick(1, 3, 40)):
                        await _swallow_one(victims, partition, nbytes, one_way, chance, figures)
    return found


async def _swallow_one(
    victims: Victims,
    partition: Partition,
    nbytes: int,
    one_way: bool,
    chance: random.Random,
    figures: Figures,
) -> None:
    victim = chance.randrange(HOSTS)
    async with victims.round(linger, HOSTS, nbytes=nbytes) as round:
        try:
            await round.all_say("running")
            await asyncio.sleep(chance.random() * 0.05)
            began = time.monotonic_ns()
            if one_way:
                for other in range(HOSTS):
                    if other != victim:
                        partition.swallow(victim, other)
            else:
                partition.isolate(victim)
            outcomes = await round.outcomes(within=60)
        finally:
            partition.heal()
        for rank, seen in figures.take(outcomes, round).items():
            if not seen["failed"]:
                figures.problem(f"rank {rank} had no error")
                continue
            figures.samples.append((seen["failed"][-1]["at"] - began) / 1e6)
            for error in seen["failed"]:
                named = rank == victim or error["ranks"] == [victim]
                if error["type"] not in ("PeerLost", "Evicted") or not named:
                    figures.problem(f"rank {rank}, victim {victim}: {error}")
