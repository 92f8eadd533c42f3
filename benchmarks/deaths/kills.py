"""Row 1: SIGKILL one rank in the middle of all_reduces, over and over."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from aiodist.cli.bench.measures import show_size
from benchmarks.deaths.figures import Figures, milliseconds, percentile
from benchmarks.deaths.ranks import endless
from benchmarks.deaths.scale import TRANSPORTS, Scale, limit_of
from tests.support.faults import Victims

DEPTH = 2  # all_reduces under way at a time
# By size: how many kills there are of each number of ranks and transport, when it is the whole; 1,002 in all.
KILLS = {1 << 10: 50, 64 << 10: 45, 1 << 20: 40, 16 << 20: 20, 64 << 20: 12}
RANKS = (2, 4, 8)
WITHIN = 60.0  # seconds; a survivor that has not said anything by then hangs


async def run(scale: Scale) -> list[Figures]:
    """So many kills of each number of ranks, transport and size."""
    sizes = list(KILLS)[:3] if scale.quick else list(KILLS)
    words = f"{show_size(sizes[0])} to {show_size(sizes[-1])}"
    found = []
    for transport, name in TRANSPORTS.items():
        async with Victims(transport=transport) as victims:
            for size in (2, 3) if scale.quick else RANKS:
                figures = Figures(1, f"{name}, {words}", str(size), bar=limit_of(size))
                found.append(figures)
                by_size = []
                for nbytes in sizes:
                    before = len(figures.samples)
                    chance = random.Random(f"{scale.seed} {transport} {size} {nbytes}")
                    for _ in scale.times(figures, scale.pick(1, 4, KILLS[nbytes])):
                        await kill_one(victims, size, nbytes, chance, figures)
                    if these := figures.samples[before:]:
                        by_size.append(f"{show_size(nbytes)} {milliseconds(percentile(these, 99))}")
                figures.notes.append(f"p99 by size: {', '.join(by_size)}")
    return found


async def kill_one(victims: Victims, size: int, nbytes: int, chance: random.Random, figures: Figures) -> None:
    """One kill: who and when by chance."""
    victim = chance.randrange(size)
    survivors = [rank for rank in range(size) if rank != victim]
    async with victims.round(endless, size, nbytes=nbytes, depth=DEPTH) as round:
        await round.all_say("running", within=60)
        one = max(said.facts["seconds"] for said in round.heard("running"))
        await asyncio.sleep(chance.random() * max(0.01, 2 * one))
        died = round.kill(victim)
        outcomes = await round.outcomes(survivors, within=WITHIN)
        for rank, seen in figures.take(outcomes, round).items():
            judge(figures, rank, seen, victim, died)


def judge(figures: Figures, rank: int, seen: dict[str, Any], victim: int, died: int) -> None:
    """Check that each pending Work of a survivor fails, naming the victim, the operation and its number."""
    failed = seen["failed"]
    issued = 1 + seen["right"] + seen["wrong"] + len(failed)  # number 0 ended init_process_group
    # Of several under way a later one may just have ended well when an earlier one fails.
    pending = range(max(issued - DEPTH, 1), issued)
    told = [(each["type"], each["ranks"], each["op"]) for each in failed]
    numbers = [each["seq"] for each in failed]
    right = all(one == ("PeerLost", [victim], "all_reduce") for one in told)
    right = right and numbers == sorted(set(numbers)) and set(numbers) <= set(pending)
    if not failed or not right or (seen["later"] or {}).get("ranks") != [victim]:
        figures.problem(f"rank {rank} of victim {victim}: {told} {numbers}, then {seen['later']}")
    if failed:  # from the death on; a Work issued later fails from its issue on
        waits = [each["at"] - max(died, each["issued"]) for each in failed]
        figures.samples.append(max(waits) / 1e6)
