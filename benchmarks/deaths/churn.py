"""Row 13: a long time of deaths, freezes and newcomers, one every 0.2 to 1 s."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence

from benchmarks.deaths.figures import Figures
from benchmarks.deaths.lives import live
from benchmarks.deaths.regroups import epochs_of
from benchmarks.deaths.scale import Scale
from tests.support.faults import Round, Said, Victims

LEAST, MOST = 4, 8  # living members between which the number moves
EVICT_AFTER = 2.0
LOOK = 20
ROOM = (("fds", 12, 11), ("shm", 12, 2), ("threads", 3, 0), ("rss", 32 << 20, 0))
"""Allowances of what `held` counts: what may come and go, and what each member costs."""


async def run(scale: Scale) -> list[Figures]:
    """Check that sums are exact in every epoch, and that what a survivor holds does not grow."""
    found = []
    for transport, name in (("auto", "shared memory"), ("tcp", "TCP")):
        figures = Figures(13, f"churn, {name}", f"{LEAST} to {MOST}")
        found.append(figures)
        seconds = scale.pick(4, 20, 300)
        async with Victims(transport=transport, env={"AIODIST_EVICT_AFTER": f"{EVICT_AFTER:g}"}) as victims:
            chance = random.Random(f"{scale.seed} {transport}")
            await _live_through(victims, chance, seconds, figures, scale)
    return found


async def _live_through(
    victims: Victims, chance: random.Random, seconds: float, figures: Figures, scale: Scale
) -> None:
    async with victims.round(live, MOST, look=LOOK, patience=20.0) as round:
        await round.all_say("running")
        await _churn(round, chance, seconds, figures, scale)
        await _end(round, figures)


async def _churn(round: Round, chance: random.Random, seconds: float, figures: Figures, scale: Scale) -> None:
    until = time.monotonic() + seconds
    stopped: dict[int, float] = {}  # until when
    counts = {"killed": 0, "stopped": 0, "came": 0}
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        scale.step(13, f"{figures.what}, {left:.0f} s left, {counts}")
        for rank in [rank for rank, when in stopped.items() if when < time.monotonic()]:
            del stopped[rank]
            round.resume(rank)
        able = [rank for rank in round.alive if rank not in stopped and epochs_of(round, rank)]
        choice = chance.random()
        if len(round.alive) - len(stopped) < MOST and (choice < 0.5 or len(able) <= LEAST):
            counts["came"] += 1
            round.add(newcomer=True, look=LOOK, patience=20.0)
        elif len(able) > LEAST and choice < 0.85:
            counts["killed"] += 1
            round.kill(chance.choice(able))
        elif len(able) > LEAST:
            counts["stopped"] += 1
            rank = chance.choice(able)
            round.stop(rank)
            # Some wake up in time, most do not.
            stopped[rank] = time.monotonic() + chance.uniform(0.5, 3 * EVICT_AFTER)
        figures.repeats += 1
    for rank in stopped:
        round.resume(rank)
    figures.notes.append(", ".join(f"{count} {what}" for what, count in counts.items()))


async def _end(round: Round, figures: Figures) -> None:
    """All that still live stop together."""
    dead = {said.rank for said in round.heard("died")}
    stopping = list(round.alive)
    await round.until(lambda: False, within=0.5)  # who was resumed last learns where it is
    # Who came last is admitted; whoever is not has nobody to end with, and is told of below.
    await round.until(lambda: all(epochs_of(round, rank) for rank in round.alive), within=60)
    round.tell("stop")
    outcomes = await round.outcomes(within=120)
    seen = figures.take({r: o for r, o in outcomes.items() if r not in dead and not _died(o)}, round, 0)
    last = {
        tuple(value["members"]) for rank, value in seen.items() if value["ended"] is None and rank in stopping
    }
    if len(last) > 1:
        figures.problem(f"they ended in different epochs: {last}")
    for rank, value in seen.items():
        ended = value["ended"]
        if ended and ended["type"] != "Evicted":
            figures.problem(f"rank {rank}: {ended}")
    _check_flat(round, figures)
    changes = [said.facts["number"] for said in round.heard("epoch")]
    figures.notes.append(f"{max(changes, default=0)} epochs")


def _median_members(epochs: Sequence[Said]) -> float:
    return statistics.median(len(said.facts["members"]) for said in epochs)


def _died(outcome: object) -> bool:
    return getattr(outcome, "what", "") == "died"


def _check_flat(round: Round, figures: Figures) -> None:
    """Compare what long-lived members hold in their last epochs with their first ones."""
    grown = []
    for rank in range(round.size + len(round.said)):
        epochs = epochs_of(round, rank)
        if len(epochs) < 8:
            continue
        third = len(epochs) // 3
        first, last = epochs[1 : 1 + third], epochs[-third:]
        more = _median_members(last) - _median_members(first)
        for what, room, each in ROOM:
            early = statistics.median(said.facts[what] for said in first)
            late = statistics.median(said.facts[what] for said in last)
            growth = late - early - each * max(more, 0)  # what more members cost is no growth
            grown.append((what, growth))
            if growth > room:
                figures.problem(f"rank {rank}: {what} grew from {early} to {late} in {len(epochs)} epochs")
    if grown:
        most = {what: max(value for name, value in grown if name == what) for what, _ in grown}
        words = ", ".join(
            f"{what} {value / 2**20:+.1f} MiB" if what == "rss" else f"{what} {value:+.0f}"
            for what, value in most.items()
        )
        figures.notes.append(f"growth at most: {words}")
