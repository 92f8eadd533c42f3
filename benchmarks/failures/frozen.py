"""Rows 3 and 4: a process that is stopped past the limit, and one that is merely busy for long."""

from __future__ import annotations

import asyncio
import ctypes
import random
from typing import Any

from aiodist.testing.faults import Stage, Victims
from benchmarks.failures.figures import Figures
from benchmarks.failures.ranks import endless, reduce_until_broken
from benchmarks.failures.scale import Scale

RANKS = 3
DEFAULT_LIMIT = 30.0  # AIODIST_EVICT_AFTER, where nobody sets it
GRACE = 2.0  # seconds more until it is noticed


async def stopped(scale: Scale) -> list[Figures]:
    """Row 3: SIGSTOP; the others give it up at the limit. SIGCONT; it learns that they have."""
    cases = [(2.0, scale.pick(1, 3, 20))] + ([(DEFAULT_LIMIT, 2)] if scale.whole else [])
    found = []
    chance = random.Random(scale.seed)
    for transport, name in (("shm", "shared memory"), ("tcp", "TCP")):
        for limit, repeats in cases:
            figures = Figures(
                3, f"{name}, AIODIST_EVICT_AFTER={limit:g}", str(RANKS), bar=(limit + GRACE) * 1e3
            )
            found.append(figures)
            env = {"AIODIST_EVICT_AFTER": f"{limit:g}"}
            async with Victims(transport=transport, env=env) as victims:
                for number in range(repeats):
                    scale.step(3, f"{name}, limit {limit:g} s, {number + 1} of {repeats}")
                    await _stop_one(victims, limit, chance, figures)
    return found


async def _stop_one(victims: Victims, limit: float, chance: random.Random, figures: Figures) -> None:
    victim = chance.randrange(RANKS)
    survivors = [rank for rank in range(RANKS) if rank != victim]
    async with victims.round(endless, RANKS, nbytes=1 << 16, timeout=limit + 60) as round:
        await round.all_say("running")
        await asyncio.sleep(chance.random() * 0.02)
        when = round.stop(victim)
        outcomes = await round.outcomes(survivors, within=limit + 60)
        round.resume(victim)
        outcomes |= await round.outcomes([victim])
        figures.repeats += 1
        for rank, outcome in outcomes.items():
            if outcome is None:
                figures.hangs += 1
                figures.problem(round.report())
                continue
            if outcome.error or outcome.what != "ends" or not outcome.value["failed"]:
                figures.problem(f"rank {rank}: {outcome}")
                continue
            seen = outcome.value
            figures.wrong += seen["wrong"]
            figures.checked += seen["right"] + seen["wrong"]
            last = seen["failed"][-1]
            if rank == victim:
                if last["type"] != "Evicted":
                    figures.problem(f"the resumed rank {rank}: {last}")
            else:
                figures.samples.append((last["at"] - when) / 1e6)
                if last["type"] != "PeerLost" or last["ranks"] != [victim]:
                    figures.problem(f"rank {rank}, victim {victim}: {last}")
                if figures.samples[-1] < limit * 1e3 - 600:  # its last sign of life was old
                    figures.problem(f"rank {rank} gave rank {victim} up after {figures.samples[-1]:.0f} ms")


async def holding(stage: Stage, seconds: float, holder: int, count: int) -> dict[str, Any]:
    """All_reduces; between two of them one rank is in a call that holds the interpreter."""
    async with await stage.join(timeout=60) as pg:
        before = await reduce_until_broken(stage, pg, 1 << 16, count=count)
        if stage.rank == holder:
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # PyDLL does not release the interpreter
        after = await reduce_until_broken(stage, pg, 1 << 16, count=count)
        return {name: before[name] + after[name] for name in ("right", "wrong", "failed")}


async def busy(scale: Scale) -> list[Figures]:
    """Row 4: a call that holds the interpreter for 5 s evicts nobody."""
    seconds = 1.5 if scale.tiny else 5.0
    repeats = scale.pick(1, 1, 10)
    found = []
    for transport, name in (("shm", "shared memory"), ("tcp", "TCP")):
        figures = Figures(4, f"{name}, {seconds:g} s without the interpreter", str(RANKS))
        found.append(figures)
        async with Victims(transport=transport) as victims:
            for number in range(repeats):
                scale.step(4, f"{name}, {number + 1} of {repeats}")
                holder = (scale.seed + number) % RANKS
                async with victims.round(holding, RANKS, seconds=seconds, holder=holder, count=50) as round:
                    outcomes = await round.outcomes(within=seconds + 60)
                    figures.repeats += 1
                    for rank, outcome in outcomes.items():
                        if outcome is None:
                            figures.hangs += 1
                        elif outcome.error or outcome.value["failed"] or outcome.value["right"] != 100:
                            figures.problem(f"rank {rank}: {outcome}")
                        else:
                            figures.wrong += outcome.value["wrong"]
                            figures.checked += outcome.value["right"]
    return found
