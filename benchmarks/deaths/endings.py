"""Row 6: connections that end in every way they can, between processes that both live."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from benchmarks.deaths.figures import Figures
from benchmarks.deaths.ranks import linger
from benchmarks.deaths.scale import Scale
from tests.support.faults import FaultProxy, Round, Victims

RANKS = 3
NBYTES = 1 << 20
IDLE = 0.2  # of a core, at most, once the group is broken
BAR = 100.0

Fault = Callable[[FaultProxy, random.Random], None]

FAULTS: dict[str, Fault] = {
    "FIN both ways": lambda proxy, chance: proxy.close_all(),
    "RST": lambda proxy, chance: proxy.cut(),
    "half-close": lambda proxy, chance: chance.choice([proxy.forth, proxy.back]).finish(),
    "partial frame, FIN": lambda proxy, chance: proxy.forth.strike("finish", chance.randrange(NBYTES)),
    "partial frame, RST": lambda proxy, chance: proxy.forth.strike("cut", chance.randrange(NBYTES)),
}


async def run(scale: Scale) -> list[Figures]:
    """Each fault, on a data connection, and on all connections that one rank made to another."""
    found = []
    chance = random.Random(scale.seed)
    async with Victims(transport="tcp") as victims:
        for what, fault in FAULTS.items():
            figures = Figures(6, what, str(RANKS), bar=BAR)
            found.append(figures)
            for _ in scale.times(figures, scale.pick(1, 5, 50)):
                await end_one(victims, fault, chance, figures)
    return found


async def end_one(victims: Victims, fault: Fault, chance: random.Random, figures: Figures) -> None:
    """Make one fault between two of the ranks; all of them have to learn of it."""
    async with victims.round(linger, RANKS, detours=True, nbytes=NBYTES) as round:
        await round.all_say("running")
        assert round.detours is not None
        # Where data flows, so that a fault in the middle of a frame comes to pass. What the lower rank dialed
        # is for data alone, what the higher one dialed is for the control link, too.
        ways = [(a, b) for a in range(RANKS) for b in range(RANKS) if a != b]
        flowing = [way for way in ways if round.detours.between(*way).forth.passed > NBYTES // 4]
        dialer, peer = chance.choice(flowing)
        proxy = round.detours.between(dialer, peer)
        await asyncio.sleep(chance.random() * 0.02)
        fault(proxy, chance)
        began = time.monotonic_ns()
        await judge(round, {dialer, peer}, began, figures)


async def judge(round: Round, pair: set[int], began: int, figures: Figures) -> None:
    """Check what all ranks saw, the two at its ends too: errors that name one of these, and then rest."""
    for rank, seen in figures.take(await round.outcomes(), round).items():
        for error in seen["failed"]:
            named = set(error["ranks"]) & pair
            if error["type"] != "Evicted" and (error["type"] != "PeerLost" or not named):
                figures.problem(f"rank {rank}, connection of {sorted(pair)}: {error}")
        if not seen["failed"] or seen["later"] is None:
            figures.problem(f"rank {rank} had no error")
        else:
            figures.samples.append((seen["failed"][-1]["at"] - began) / 1e6)
        if seen["busy"] > IDLE:
            figures.problem(f"rank {rank} was busy for {seen['busy']:.0%} of the time afterwards")
