"""The work of ranks while something happens to them: all_reduces of whole numbers, each result checked.

Element i of rank r in operation k is i % 1009 + 31 r + k: different on every rank, element and operation,
and every sum is exact. So a result that mixes operations, or lacks a rank, is seen.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import numpy as np

import aiodist as dist
from tests.support.faults import Stage

BIG = 256 << 10
"""Bytes from which on results are checked beside the loop."""

Array = np.ndarray[Any, np.dtype[np.int64]]


class Numbers:
    """Inputs and results of all_reduces of one size, made once and kept.

    Args:
        stage: whose memory they are kept in.
        nbytes: of a tensor.
        depth: how many tensors there are.
    """

    def __init__(self, stage: Stage, nbytes: int, depth: int) -> None:
        count = max(1, nbytes // 8)
        made = stage.kept.get((count, depth))
        if made is None:
            stage.kept.clear()  # of other sizes
            base = np.arange(count, dtype=np.int64) % 1009
            made = stage.kept[count, depth] = (base, [np.empty_like(base) for _ in range(depth)])
        self._base: Array = made[0]
        self.tensors: list[Array] = made[1]

    def fill(self, tensor: Array, rank: int, number: int) -> None:
        """Fill in what a rank gives to an operation."""
        np.add(self._base, 31 * rank + number, out=tensor)

    def right(self, tensor: Array, ranks: tuple[int, ...], number: int) -> bool:
        """Whether a tensor is the sum over these ranks."""
        tensor -= 31 * sum(ranks) + number * len(ranks)
        tensor -= self._base * len(ranks)
        return not tensor.any()


class When:
    """The times at which a Work was issued and ended: the program may be busy with another one just then."""

    def __init__(self) -> None:
        self.issued = time.monotonic_ns()
        self.at = 0

    def __call__(self, work: Any) -> None:
        self.at = time.monotonic_ns()


async def aside(nbytes: int, function: Any, *arguments: Any) -> Any:
    """Run in a thread what would hold the loop, as any program on a loop does: 64 MiB take NumPy 80 ms."""
    if nbytes < BIG:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


async def reduce_until_broken(
    stage: Stage,
    pg: Any,
    nbytes: int,
    depth: int = 2,
    *,
    warm: int = 2,
    count: int = 1 << 62,
) -> dict[str, Any]:
    """All_reduces without end, `depth` under way at a time, until they fail.

    Args:
        stage: says 'running' after `warm` operations, and how many `seconds` one of them took.
        pg: the group.
        nbytes: of a tensor.
        depth: how many are issued before the first is awaited.
        warm: how many are checked before 'running'.
        count: the last one's number; fewer where the group breaks.

    Returns:
        → `right`, `wrong`: how many results were which; `failed`: of each Work that failed, in order, what
        `describe` says; `later`: the same of one issued after that.
    """
    numbers = Numbers(stage, nbytes, depth)
    under_way: deque[tuple[int, Array, Any, When]] = deque()
    spare = list(numbers.tensors)
    right = wrong = number = 0
    failed: list[dict[str, Any]] = []
    began = time.monotonic()
    while number < count or under_way:
        while spare and number < count and not failed:
            tensor = spare.pop()
            await aside(nbytes, numbers.fill, tensor, stage.rank, number)
            work = pg.all_reduce(tensor, async_op=True)
            ends = When()
            work.add_done_callback(ends)
            under_way.append((number, tensor, work, ends))
            number += 1
        if not under_way:
            break
        which, tensor, work, ends = under_way.popleft()
        try:
            await work
        except dist.AiodistError as error:
            await asyncio.sleep(0)  # callbacks run in the loop's next turn
            failed.append(describe(error) | {"at": ends.at, "issued": ends.issued})
            continue
        spare.append(tensor)
        if await aside(nbytes, numbers.right, tensor, pg.ranks, which):
            right += 1
        else:
            wrong += 1
        if right + wrong == warm:
            stage.say("running", seconds=(time.monotonic() - began) / warm)
    later = None
    if failed:
        try:
            await pg.barrier()
        except dist.AiodistError as error:
            later = describe(error)
    return {"right": right, "wrong": wrong, "failed": failed, "later": later}


def describe(error: BaseException) -> dict[str, Any]:
    """An error, as JSON, and the time."""
    return {
        "at": time.monotonic_ns(),
        "type": type(error).__name__,
        "ranks": list(getattr(error, "ranks", ())),
        "missing": list(getattr(error, "missing", ())),
        "op": getattr(error, "op", ""),
        "seq": getattr(error, "seq", None),
        "words": str(error),
    }


async def endless(stage: Stage, nbytes: int, depth: int = 2, timeout: float = 20.0) -> dict[str, Any]:
    """Join, all_reduce until it fails, leave."""
    pg = await stage.join(timeout)
    try:
        return await reduce_until_broken(stage, pg, nbytes, depth)
    finally:
        pg.abort("the round is over")
        await pg.aclose()


async def linger(stage: Stage, nbytes: int, depth: int = 2) -> dict[str, Any]:
    """Do as `endless`, then measure how busy this process is for half a second in which nothing happens."""
    pg = await stage.join()
    try:
        found = await reduce_until_broken(stage, pg, nbytes, depth)
        used, began = time.process_time(), time.monotonic()
        await asyncio.sleep(0.5)
        return found | {"busy": (time.process_time() - used) / (time.monotonic() - began)}
    finally:
        pg.abort("the round is over")
        await pg.aclose()
