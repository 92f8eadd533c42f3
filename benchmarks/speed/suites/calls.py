"""Blocking calls of torch's groups beside what they are made of.

A blocking call of aiodist hands its operation over to the portal's thread and waits. So it is measured beside
that alone (*hand-over*: the same way there and back, with nothing to do), and beside the same operation
awaited on the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from benchmarks.harness.peers import AIODIST_TORCH
from benchmarks.harness.run import Run, Step
from benchmarks.harness.turns import in_turns

if TYPE_CHECKING:
    from benchmarks.ranks.with_torch import TorchPeer

WAYS = ("hand-over", "awaited", "portal", "torch over aiodist", "torch over gloo")
_COUNT = 100  # of a turn


def blocking_calls(run: Run) -> list[Step]:
    """One step for each world size."""
    return [
        Step("calls", f"{size} ranks", partial(_calls, run, size), size)
        for size in run.settings.ranks
        if size <= 4
    ]


def _calls(run: Run, size: int) -> None:
    crew = run.crew(AIODIST_TORCH, size)
    turns = 2 if run.settings.quick else 12
    taken = in_turns(run, WAYS, turns, lambda way: crew.do(seconds_each, way=way)[0])
    for way, rounds in taken.items():
        run.results.add("calls", "all_reduce", way, list(chain.from_iterable(rounds)), ranks=size, nbytes=4)


async def seconds_each(peer: TorchPeer, way: str) -> list[float]:
    """On a rank: seconds of each of some calls, one after the other."""
    return await asyncio.to_thread(_one_by_one, peer, way)


def _one_by_one(peer: TorchPeer, way: str) -> list[float]:
    import torch
    import torch.distributed as c10d

    tensor = torch.zeros(1)
    ours = c10d.group.WORLD.ours
    c10d.barrier()
    if way == "awaited":
        return list(ours.portal.call(_awaited, ours, tensor))
    calls: dict[str, Callable[[], object]] = {
        "hand-over": lambda: ours.portal.call(int),
        "portal": lambda: ours.all_reduce(tensor),
        "torch over aiodist": lambda: c10d.all_reduce(tensor),
        "torch over gloo": lambda: c10d.all_reduce(tensor, group=peer.gloo),
    }
    call, times = calls[way], []
    for _ in range(_COUNT):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return times


async def _awaited(pg: Any, tensor: Any) -> list[float]:
    """Seconds of each awaited operation, on the portal's loop."""
    times = []
    for _ in range(_COUNT):
        began = time.perf_counter()
        await pg.all_reduce(tensor)
        times.append(time.perf_counter() - began)
    return times
