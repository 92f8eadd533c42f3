"""Row 20: what programs do wrong: operations that disagree, awaits given up, loops that end, forks."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import numpy as np

import aiodist as dist
from benchmarks.deaths.figures import Figures
from benchmarks.deaths.ranks import describe
from benchmarks.deaths.scale import TRANSPORTS, Scale
from tests.support.faults import Stage, Victims

RANKS = 3
EVICT_AFTER = 2.0  # seconds after which a loop that turns no more is noticed


async def disagree(stage: Stage, how: str, odd: int) -> dict[str, Any]:
    """One rank issues something else under the same number."""
    other = stage.rank == odd
    async with await stage.join() as pg:
        await pg.barrier()
        began = time.monotonic_ns()
        try:
            for _ in range(3):  # a rank that only sent learns at its next one
                match how:
                    case "shape":
                        await pg.all_reduce(np.zeros(500_000 if other else 400_000))
                    case "dtype":
                        await pg.all_reduce(np.zeros(4, np.int32 if other else np.float32))
                    case "order":
                        await (pg.barrier() if other else pg.all_reduce(np.zeros(4)))
        except dist.CollectiveMismatch as error:
            return {"said": sorted(error.said), "after": (time.monotonic_ns() - began) / 1e6}
    raise AssertionError("nothing was raised")


async def give_up(stage: Stage) -> dict[str, Any]:
    """One rank cancels its awaits; the operations go on, here and elsewhere."""
    right = 0
    async with await stage.join() as pg:
        before = asyncio.all_tasks()  # this one, and those of the group
        for number in range(20):
            tensor = np.arange(50_000) + stage.rank + number
            work = pg.all_reduce(tensor, async_op=True)
            if stage.rank == number % stage.size:

                async def wait(work: Any = work) -> None:
                    await work

                task = asyncio.create_task(wait())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await pg.drain()
            await work
            expected = (np.arange(50_000) + number) * stage.size + sum(range(stage.size))
            right += bool(np.array_equal(tensor, expected))
        tasks = len(asyncio.all_tasks() - before)
    return {"right": right, "wrong": 20 - right, "tasks": tasks}


async def end_the_loop(stage: Stage, odd: int) -> dict[str, Any]:
    """End one rank's loop in the middle of an operation; its process lives on, the group is not closed."""
    if stage.rank == odd:

        async def short() -> None:
            pg = await stage.join()
            await pg.barrier()
            pg.all_reduce(np.zeros(100), async_op=True)
            stage.say("leaves")

        thread = threading.Thread(target=asyncio.run, args=(short(),))
        thread.start()
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(2 * EVICT_AFTER)
        return {}
    pg = await stage.join()
    try:
        await pg.barrier()
        while True:
            await pg.all_reduce(np.zeros(100))
    except dist.AiodistError as error:
        return describe(error)
    finally:
        pg.abort("the round is over")
        await pg.aclose()


async def fork(stage: Stage, odd: int) -> dict[str, Any]:
    """Fork one rank: the child has no group, and its end disturbs nobody."""
    async with await stage.join() as pg:
        right = 0
        for number in range(10):
            if stage.rank == odd and number == 5:
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        pg.barrier()
                    except dist.GroupClosed:
                        code = 0
                    finally:
                        os._exit(code)
                if os.waitpid(child, 0)[1]:  # noqa: ASYNC222 - it ends at once
                    raise AssertionError("the child of a fork could use the group")
            tensor = await pg.all_reduce(np.array([stage.rank + number]))
            right += int(tensor[0] == number * stage.size + sum(range(stage.size)))
        return {"right": right, "wrong": 10 - right}


async def run(scale: Scale) -> list[Figures]:
    """Each mistake, by each rank, over shared memory and TCP."""
    cases: dict[str, tuple[Any, dict[str, Any], float | None]] = {
        "shapes differ": (disagree, {"how": "shape"}, 1000.0),
        "dtypes differ": (disagree, {"how": "dtype"}, 1000.0),
        "order differs": (disagree, {"how": "order"}, 1000.0),
        "await cancelled": (give_up, {}, None),
        "loop ended": (end_the_loop, {}, None),
        "fork": (fork, {}, None),
    }
    found = []
    for transport, name in TRANSPORTS.items():
        async with Victims(transport=transport, env={"AIODIST_EVICT_AFTER": f"{EVICT_AFTER:g}"}) as victims:
            for what, (function, arguments, bar) in cases.items():
                figures = Figures(20, f"{what}, {name}", str(RANKS), bar=bar)
                found.append(figures)
                for number in scale.times(figures, scale.pick(1, 3, 30)):
                    given = arguments if function is give_up else {**arguments, "odd": number % RANKS}
                    async with victims.round(function, RANKS, **given) as round:
                        for rank, seen in figures.take(await round.outcomes(), round).items():
                            _judge(figures, rank, seen, given)
    return found


def _judge(figures: Figures, rank: int, seen: dict[str, Any], given: dict[str, Any]) -> None:
    if "after" in seen:
        figures.samples.append(seen["after"])
        if seen["said"] != list(range(RANKS)):
            figures.problem(f"rank {rank} heard only of {seen['said']}")
    if seen.get("tasks"):
        figures.problem(f"rank {rank} had {seen['tasks']} tasks left over")
    if "type" in seen and (seen["type"] != "PeerLost" or seen["ranks"] != [given["odd"]]):
        figures.problem(f"rank {rank}: {seen}")
