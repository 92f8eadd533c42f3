"""Rows 7, 8 and 10: partitions, deaths while the survivors regroup, and all dead but one."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection
from typing import Any

from aiodist.testing.hosts import Hosts
from benchmarks.deaths.figures import Figures
from benchmarks.deaths.lives import live
from benchmarks.deaths.scale import Scale
from tests.support.faults import Partition, Round, Said, Victims

STEPS = 5


def epochs_of(round: Round, rank: int) -> list[Said]:
    """The epochs in which a rank did a step."""
    return round.heard("epoch", rank)


# ── row 7 ────────────────────────────────────────────────────────────────────────────────────────────


async def partitions(scale: Scale) -> list[Figures]:
    """Five hosts fall into two parts, by chance. Whichever arbiter there is, at most one part goes on."""
    hosts_count = 5
    chance = random.Random(scale.seed)
    found = []
    with Hosts(hosts_count + 1) as hosts:
        partition = Partition(hosts)
        async with Victims(hosts=hosts) as victims:
            for store in (False, True):
                for one_way in (store,) if scale.quick else (False, True):
                    who = "the store decides" if store else "the majority decides"
                    way = "one way" if one_way else "both ways"
                    figures = Figures(7, f"{way}; {who}", str(hosts_count))
                    found.append(figures)
                    for _ in scale.times(figures, scale.pick(1, 3, 40)):
                        some = set(chance.sample(range(hosts_count), chance.randrange(1, hosts_count)))
                        await _separate(victims, partition, hosts_count, store, one_way, some, figures)
    return found


async def _separate(
    victims: Victims,
    partition: Partition,
    count: int,
    store: bool,
    one_way: bool,
    some: set[int],
    figures: Figures,
) -> None:
    others = set(range(count)) - some
    async with victims.round(
        live,
        count,
        places=range(count),
        store_on=count if store else None,
        patience=3.0,
        steps=STEPS,
    ) as round:
        try:
            await round.all_say("running")
            began = time.monotonic_ns()
            if one_way:
                for a in some:
                    for b in others:
                        partition.swallow(a, b)
            else:
                partition.separate(some, others)
            outcomes = await round.outcomes(within=90)
        finally:
            partition.heal()
        seen = figures.take(outcomes, round)
        went_on = {rank: value for rank, value in seen.items() if value["ended"] is None}
        parts = {tuple(value["members"]) for value in went_on.values()}
        words = f"{sorted(some)} from {sorted(others)}"
        if len(parts) > 1:
            figures.problem(f"{words}: several parts went on: {sorted(parts)}")
        for part in parts:
            if set(part) != set(went_on):
                figures.problem(f"{words}: {part} went on, but {sorted(went_on)} say so")
        if not store and not one_way and len(went_on) <= count // 2 and went_on:
            figures.problem(f"{words}: a minority went on: {sorted(went_on)}")
        if not went_on and not one_way:
            figures.notes.append(f"{words}: nobody went on")
        for rank in went_on:
            last = epochs_of(round, rank)[-1]
            figures.samples.append((last.at - began) / 1e6)


# ── row 8 ────────────────────────────────────────────────────────────────────────────────────────────


async def deaths(scale: Scale) -> list[Figures]:
    """Kill one; while the others regroup a second crashes at a step of that, a third is killed."""
    size = 8
    found = []
    for transport, name in (("auto", "shared memory"), ("tcp", "TCP")):
        for rank_0_has_store in (False, True):
            who = "majority decides" if rank_0_has_store else "store decides"
            figures = Figures(8, f"three deaths, {name}; the {who}", str(size))
            found.append(figures)
            chance = random.Random(f"{scale.seed} {transport} {rank_0_has_store}")
            async with Victims(transport=transport) as victims:
                for _ in scale.times(figures, scale.pick(2, 10, 100)):
                    await _kill_three(victims, size, rank_0_has_store, chance, figures)
    return found


async def _kill_three(
    victims: Victims, size: int, rank_0_has_store: bool, chance: random.Random, figures: Figures
) -> None:
    first, second, third = chance.sample(range(size), 3)
    step = chance.randrange(1, 2500)

    def each(rank: int) -> dict[str, Any]:
        return {"crash_rebuilding": step} if rank == second else {}

    survivors = set(range(size)) - {first, second, third}
    async with victims.round(
        live, size, each=each, rank_0_has_store=rank_0_has_store, patience=10.0, steps=STEPS
    ) as round:
        await round.all_say("running")
        await asyncio.sleep(chance.random() * 0.02)
        round.kill(first)
        await asyncio.sleep(chance.random() * 0.06)
        last_death = round.kill(third)
        # The second may have ended in an epoch with the others before its step came.
        outcomes = await round.outcomes(survivors, within=90)
        fell = round.heard("dies", second)
        last_death = max([last_death, *(said.at for said in fell)])
        _same_members(figures, round, figures.take(outcomes, round), survivors, {second, third}, last_death)


def _same_members(
    figures: Figures,
    round: Round,
    seen: dict[int, dict[str, Any]],
    survivors: Collection[int],
    perhaps: Collection[int],
    since: int,
) -> None:
    """Check that the last epochs are one: of survivors, and perhaps of some that died after a good end."""
    sets = {tuple(value["members"]) for value in seen.values()}
    if len(sets) != 1 or any(value["ended"] for value in seen.values()):
        figures.problem(f"survivors {sorted(survivors)}: {seen}")
        return
    [members] = sets
    if not set(survivors) <= set(members) <= set(survivors) | set(perhaps):
        figures.problem(f"survivors {sorted(survivors)} went on as {members}")
    for rank in seen:
        figures.samples.append(max(0.0, (epochs_of(round, rank)[-1].at - since) / 1e6))


# ── row 10 ───────────────────────────────────────────────────────────────────────────────────────────


async def all_but_one(scale: Scale) -> list[Figures]:
    """Kill all at once but one; what it may do depends on the policy."""
    size = scale.pick(3, 4, 8)
    cases = [
        ("min_size=1, the store decides", 1, False, True),
        ("min_size=2, the store decides", 2, False, False),
        ("min_size=1, the majority decides, deaths proven", 1, True, True),
    ]
    found = []
    chance = random.Random(scale.seed)
    async with Victims() as victims:
        for what, min_size, rank_0_has_store, goes_on in cases:
            figures = Figures(10, what, str(size))
            found.append(figures)
            for _ in scale.times(figures, scale.pick(1, 5, 50)):
                survivor = chance.randrange(size)
                async with victims.round(
                    live,
                    size,
                    rank_0_has_store=rank_0_has_store,
                    min_size=min_size,
                    patience=20.0 if goes_on else 2.0,
                    steps=STEPS,
                ) as round:
                    await round.all_say("running")
                    last = max(round.kill(rank) for rank in range(size) if rank != survivor)
                    outcomes = await round.outcomes([survivor], within=90)
                    for value in figures.take(outcomes, round).values():
                        ended = value["ended"]
                        if goes_on and (ended or value["members"] != [survivor]):
                            figures.problem(f"rank {survivor} did not go on alone: {value}")
                        elif not goes_on and (ended is None or ended["type"] != "QuorumLost"):
                            figures.problem(f"rank {survivor} got no QuorumLost: {value}")
                        elif goes_on:
                            figures.samples.append((epochs_of(round, survivor)[-1].at - last) / 1e6)
                        else:
                            figures.samples.append((ended["at"] - last) / 1e6)
    return found
