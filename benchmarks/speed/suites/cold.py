"""A call of a shape that never came before, beside the same call again and again; two ranks."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.harness.peers import AIODIST
from benchmarks.harness.run import Run, Step
from benchmarks.ranks.with_aiodist import AiodistPeer

WHAT = ("all_reduce", "broadcast", "all_gather")
_SIZE = 2
_CALLS = 200  # of a turn
_WARM = (4, 4, 8)
MOST = 256
"""Elements of an array at most: 1 KiB of float32."""

Shape = tuple[int, int, int]


def cold(run: Run) -> list[Step]:
    """One step for each operation: turns of new shapes and turns of one shape alternate."""
    return [Step("cold", what, partial(_cold, run, what), _SIZE) for what in WHAT]


def _cold(run: Run, what: str) -> None:
    crew = run.crew(AIODIST, _SIZE)
    taken: dict[str, list[float]] = {"aiodist": [], "aiodist-warm": []}
    for turn in range(run.settings.turns):
        for line, found in taken.items():
            new = line == "aiodist"
            ranks = crew.do(seconds_of_a_call, what=what, first=turn * _CALLS, count=_CALLS, new=new)
            found.append(max(ranks))
    for line, values in taken.items():
        run.results.add("cold", what, line, values, ranks=_SIZE)


async def seconds_of_a_call(peer: AiodistPeer, what: str, first: int, count: int, new: bool) -> float:
    """On a rank: of `count` calls in a row, each of a shape that never came before, or all of one."""
    wanted = shapes(first, count) if new else [_WARM] * count
    tensors = [np.zeros(shape, np.float32) for shape in wanted]
    calls: list[Callable[[], Awaitable[Any]]] = [
        partial(getattr(peer.pg, what), tensor) for tensor in tensors
    ]
    if what == "all_gather":
        outs = [np.zeros((peer.size, *shape), np.float32) for shape in wanted]
        calls = [partial(peer.pg.all_gather, *both) for both in zip(tensors, outs, strict=True)]
    await peer.barrier()
    began = time.perf_counter()
    for call in calls:
        await call()
    return (time.perf_counter() - began) / count


def shapes(first: int, count: int) -> list[Shape]:
    """The shapes from number `first` on; no two numbers have the same, and all mix small and larger ones."""
    return list(islice(_all_shapes(), first, first + count))


def _all_shapes() -> Iterator[Shape]:
    """All triples whose product is small enough; neighbours differ in their number of elements."""
    for height in range(1, MOST + 1):
        for width in range(1, MOST // height + 1):
            for depth in range(1, MOST // (height * width) + 1):
                yield depth, width, height
