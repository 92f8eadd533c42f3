"""Row 2: a rank crashes at each of its steps, from `init_process_group` to the end of `aclose`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import aiodist as dist
from benchmarks.deaths.figures import Figures
from benchmarks.deaths.ranks import describe
from benchmarks.deaths.scale import TRANSPORTS, Scale
from tests.support.faults import Said, Stage, Steps, Victims

RANKS = 3
PATIENCE = 4.0  # seconds that a survivor of init_process_group waits for those that never come
WITHIN = 60.0


async def life(
    stage: Stage, crash_at: int = 0, patience: float = 20.0, counted: bool = False
) -> dict[str, Any]:
    """A short life with a bit of everything.

    Args:
        stage: says 'joined', and 'dies'.
        crash_at: which call of aiodist is the last; 0: none.
        patience: seconds.
        counted: count the calls.

    Returns:
        → `wrong`, `right`: results; `error`: what ended it, as `describe` has it; `joined`; `steps`.
    """
    seen: dict[str, Any] = {"wrong": 0, "right": 0, "error": None, "joined": False}
    steps = Steps("", 1 << 62, lambda: None)
    if counted:
        steps.watch()
    if crash_at:
        stage.crash(count=crash_at)
    try:
        async with await stage.join(timeout=patience) as pg:
            stage.say("joined")
            seen["joined"] = True
            pg.timeout = WITHIN  # patience was for the meeting
            try:
                for right in _everything(pg):
                    seen["right" if await right else "wrong"] += 1
            except dist.AiodistError as error:
                seen["error"] = describe(error)
                pg.abort("it broke")
    except dist.AiodistError as error:
        seen["error"] = seen["error"] or describe(error)
    steps.stop()
    return seen | {"steps": steps.seen}


def _everything(pg: Any) -> Any:
    """Coroutines, in order; each gives whether a result was right."""
    rank, size = pg.rank, pg.size
    total = sum(range(size))

    async def reduce(count: int) -> bool:
        tensor = await pg.all_reduce(np.arange(count) + rank)
        return bool(np.array_equal(tensor, np.arange(count) * size + total))

    async def broadcast() -> bool:
        tensor = await pg.broadcast(np.arange(20_000) * (rank + 1), src=1)
        return bool(np.array_equal(tensor, np.arange(20_000) * 2))

    async def gather() -> bool:
        rows = await pg.all_gather(np.arange(50) + 100 * rank)
        return bool(np.array_equal(rows, np.arange(50) + 100 * np.arange(size)[:, None]))

    async def shuffle() -> bool:
        rows = await pg.all_to_all(np.arange(size) + 10 * rank)
        return bool(np.array_equal(rows, np.arange(size) * 10 + rank))

    async def ring_shift() -> bool:
        got = np.zeros(100_000)
        work = pg.recv(got, (rank - 1) % size, async_op=True)
        await pg.send(np.full(100_000, float(rank)), (rank + 1) % size)
        await work
        return bool((got == (rank - 1) % size).all())

    async def objects() -> bool:
        found = await pg.all_gather_object({"rank": rank})
        return bool(found == [{"rank": other} for other in range(size)])

    async def child() -> bool:
        pair = await pg.new_group([0, size - 1])  # without rank 1
        if pair is None:
            return True
        tensor = await pair.all_reduce(np.array([rank + 5]))
        await pair.aclose()
        return bool(tensor[0] == size - 1 + 10)

    for count in (10, 200_000, 3):
        yield reduce(count)
    for one in (broadcast, gather, shuffle, ring_shift, objects, child):
        yield one()
    yield reduce(1000)


async def run(scale: Scale) -> list[Figures]:
    """Crash at each step in turn, or as many as there is time for, evenly."""
    found = []
    for transport, name in TRANSPORTS.items():
        async with Victims(transport=transport) as victims:
            total = await _count(victims)
            wanted = min(total, scale.pick(6, 60, 500))
            chance = random.Random(f"{scale.seed} {transport}")
            meeting = Figures(2, f"{name}, while meeting", str(RANKS), bar=None)
            working = Figures(2, f"{name}, later", str(RANKS), bar=100.0)
            for number in range(wanted):
                step = 1 + int((number + chance.random()) * total / wanted)
                scale.step(2, f"{name}: crash at call {step} of {total}, {number + 1} of {wanted}")
                await _crash_one(victims, number % RANKS, step, meeting, working)
            working.notes.append(f"about {total} steps in a life, {wanted} tried")
            found += [meeting, working]
    return found


async def _count(victims: Victims) -> int:
    async with victims.round(life, RANKS, counted=True) as round:
        outcomes = await round.outcomes(within=60)
        return min(0 if outcome is None else outcome.value["steps"] for outcome in outcomes.values())


async def _crash_one(victims: Victims, victim: int, step: int, meeting: Figures, working: Figures) -> None:
    survivors = [rank for rank in range(RANKS) if rank != victim]

    def each(rank: int) -> dict[str, Any]:
        return {"crash_at": step} if rank == victim else {"patience": PATIENCE}

    async with victims.round(life, RANKS, each=each) as round:
        outcomes = await round.outcomes(within=WITHIN)
        died = round.heard("dies", victim)
        figures = working if round.heard("joined") else meeting
        seen = figures.take({rank: outcomes[rank] for rank in survivors}, round)
        if len(seen) < len(survivors):
            figures.problem(f"it was after a crash of rank {victim} at call {step}")
        for rank, value in seen.items():
            _judge(figures, rank, value, victim, died, f"at call {step}")


def _judge(
    figures: Figures, rank: int, seen: dict[str, Any], victim: int, died: list[Said], where: str
) -> None:
    error = seen["error"]
    if error is None:
        return  # it needed the victim no more, or the victim ended before its step came
    kinds = ("PeerLost", "GroupAborted") if seen["joined"] else ("PeerLost", "RendezvousTimeout")
    named = error["type"] == "GroupAborted" or victim in (*error["ranks"], *error["missing"])
    # The pair does without rank 1. If the world breaks for one of the two, it leaves the pair: so it was.
    left = victim == 1 and "of group 'world.1'" in error["words"] and "closed the group" in error["words"]
    named = named or left
    if error["type"] not in kinds or (seen["joined"] and not named):
        figures.problem(f"rank {rank}, victim {victim} {where}: {error}")
    elif not named:
        figures.notes = ["errors while meeting may name a rank that gave up because of the victim"]
    if died:
        figures.samples.append((error["at"] - died[0].at) / 1e6)
