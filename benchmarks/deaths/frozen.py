"""Rows 3, 4 and 21: a process that is stopped past the limit, and those that are merely busy for long."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import random
import time
from typing import Any

from benchmarks.deaths.figures import Figures
from benchmarks.deaths.ranks import endless, reduce_until_broken
from benchmarks.deaths.scale import TRANSPORTS, Scale
from tests.support.faults import Stage, Victims

RANKS = 3
DEFAULT_LIMIT = 30.0  # AIODIST_EVICT_AFTER, where nobody sets it
GRACE = 2.0  # seconds more until it is noticed


async def stopped(scale: Scale) -> list[Figures]:
    """Row 3: SIGSTOP; the others give it up at the limit. SIGCONT; it learns that they have."""
    cases = [(2.0, scale.pick(1, 3, 20))] + ([(DEFAULT_LIMIT, 2)] if scale.whole else [])
    found = []
    chance = random.Random(scale.seed)
    for transport, name in TRANSPORTS.items():
        for limit, repeats in cases:
            figures = Figures(
                3, f"{name}, AIODIST_EVICT_AFTER={limit:g}", str(RANKS), bar=(limit + GRACE) * 1e3
            )
            found.append(figures)
            env = {"AIODIST_EVICT_AFTER": f"{limit:g}"}
            async with Victims(transport=transport, env=env) as victims:
                for _ in scale.times(figures, repeats):
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
        for rank, seen in figures.take(outcomes, round).items():
            last: Any = seen["failed"][-1] if seen["failed"] else {"type": "none"}
            if rank == victim:
                if last["type"] != "Evicted":
                    figures.problem(f"the resumed rank {rank}: {last}")
            elif last["type"] != "PeerLost" or last["ranks"] != [victim]:
                figures.problem(f"rank {rank}, victim {victim}: {last}")
            else:
                figures.samples.append((last["at"] - when) / 1e6)
                if figures.samples[-1] < limit * 1e3 - 600:  # its last sign of life was old
                    figures.problem(f"rank {rank} gave rank {victim} up after {figures.samples[-1]:.0f} ms")


class Told(logging.Handler):
    """The moment and text in which this process's log first says that a loop does not turn."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.first: tuple[int, str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.first is None and "has not run its event loop" in record.getMessage():
            self.first = time.monotonic_ns(), record.getMessage()


async def busy_between(
    stage: Stage, how: str, seconds: float, busy: int, count: int, timeout: float
) -> dict[str, Any]:
    """All_reduces; between two of them one rank's loop does not turn for long."""
    told, logger = Told(), logging.getLogger("aiodist")
    logger.addHandler(told)
    logger.setLevel(logging.INFO)
    try:
        async with await stage.join(timeout=timeout) as pg:
            before = await reduce_until_broken(stage, pg, 1 << 16, count=count)
            began = time.monotonic_ns()
            if stage.rank == busy and how == "held":
                ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # PyDLL does not release the interpreter
            elif stage.rank == busy:
                evaluate(seconds)
            after = await reduce_until_broken(stage, pg, 1 << 16, count=count)
            found = {name: before[name] + after[name] for name in ("right", "wrong", "failed")}
            return found | {"began": began, "told": told.first}
    finally:
        logger.removeHandler(told)
        logger.setLevel(logging.NOTSET)


def evaluate(seconds: float) -> None:
    """A step of a program that knows no loop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100_000))


async def held(scale: Scale) -> list[Figures]:
    """Row 4: a call that holds the interpreter evicts nobody, however long it takes."""
    limit = 1.0 if scale.quick else DEFAULT_LIMIT
    cases = [(2.5, 1)] if scale.quick else [(5.0, scale.pick(1, 1, 10)), (limit + 15, scale.pick(1, 1, 2))]
    return [
        figures
        for seconds, repeats in cases
        for figures in await _busy(scale, 4, "held", "without the interpreter", seconds, repeats, limit)
    ]


async def blocked(scale: Scale) -> list[Figures]:
    """Row 21: a loop that is blocked evicts nobody; who waits is told soon, with the line."""
    seconds, limit = (2.5, 1.0) if scale.quick else (2 * DEFAULT_LIMIT, DEFAULT_LIMIT)
    return await _busy(scale, 21, "blocked", "in the loop's thread", seconds, scale.pick(1, 1, 3), limit)


async def _busy(
    scale: Scale, row: int, how: str, words: str, seconds: float, repeats: int, limit: float
) -> list[Figures]:
    """Keep one rank busy; those who wait log that after `warn_after`, and everything goes on."""
    warn_after = min(5.0, limit / 2)
    env = {"AIODIST_EVICT_AFTER": f"{limit:g}", "AIODIST_WARN_AFTER": f"{warn_after:g}"}
    if scale.quick:
        env["AIODIST_HEARTBEAT"] = "0.1"
    found = []
    for transport, name in TRANSPORTS.items():
        figures = Figures(row, f"{name}, {seconds:g} s {words}", str(RANKS))
        if seconds > 2 * warn_after:  # or it is over before anybody is told
            figures.bar = (warn_after + GRACE) * 1e3
            figures.notes.append("until the others were told")
        found.append(figures)
        async with Victims(transport=transport, env=env) as victims:
            for number in scale.times(figures, repeats):
                busy = (scale.seed + number) % RANKS
                given: dict[str, Any] = {"how": how, "seconds": seconds, "busy": busy, "count": 50}
                given["timeout"] = seconds + 60
                async with victims.round(busy_between, RANKS, **given) as round:
                    seen = figures.take(await round.outcomes(within=seconds + 60), round)
                    _judge(figures, seen, how, busy)
    return found


def _judge(figures: Figures, seen: dict[int, Any], how: str, busy: int) -> None:
    place = "in evaluate" if how == "blocked" else "a call holds its interpreter"
    for rank, value in seen.items():
        told = value["told"]
        if value["failed"] or value["right"] != 100:
            figures.problem(f"rank {rank}: {value}")
        elif rank != busy and busy in seen and figures.bar is not None:
            if told is None or f"rank {busy} " not in told[1] or place not in told[1]:
                figures.problem(f"rank {rank} was not told of rank {busy}: {told}")
            else:
                figures.samples.append((told[0] - seen[busy]["began"]) / 1e6)
