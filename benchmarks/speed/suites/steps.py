"""Steps of data-parallel training in torch: its wrapper over gloo and over aiodist, and aiodist's own.

All wrappers run in the same processes and take turns of a few steps each, so what else the machine does
befalls all of them. A step is forward, backward and what makes the gradients averages; no optimizer. Torch's
wrapper with nothing sent is the least that a step can take.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import aiodist as dist
from benchmarks.harness.peers import AIODIST_TORCH
from benchmarks.harness.run import Run, Step
from benchmarks.harness.turns import in_turns, slowest

if TYPE_CHECKING:
    from benchmarks.ranks.with_torch import TorchPeer

SHAPES: dict[str, tuple[int, int, int]] = {
    "64 KiB": (64, 4, 8),
    "1 MiB": (256, 4, 8),
    "4 MiB": (512, 4, 8),
    "24 MiB": (1024, 6, 4),
    "96 MiB": (2048, 6, 4),
}
"""Bytes of gradients → width, layers, and rows of a batch."""


WAYS = {
    "gloo": "torch's over gloo",
    "aiodist": "torch's over aiodist",
    "awaited": "`dist.DistributedDataParallel`",
    "nothing": "nothing sent",
}
_SECONDS = 6.0  # for each size, about
Call = Callable[[], Awaitable[None]]


def steps_of_training(run: Run) -> list[Step]:
    """One step for each size of the gradients."""
    wanted = list(SHAPES)[: 1 if run.settings.quick else None]
    return [
        Step("steps", f"{what}, {size} ranks", partial(_steps, run, what, size), size)
        for size in run.settings.ranks
        if size <= 4
        for what in wanted
    ]


def _steps(run: Run, what: str, size: int) -> None:
    crew = run.crew(AIODIST_TORCH, size)
    crew.do(wrap, shape=SHAPES[what])

    def some(way: str, count: int) -> list[list[float]]:
        return crew.do(taken_by, way=way, count=count)

    longest = max(max(rank[-1] for rank in some(way, 3)) for way in WAYS)
    block = max(2, min(20, int(0.3 / longest)))
    turns = 1 if run.settings.quick else max(5, int(_SECONDS / (block * longest)))
    found = in_turns(run, WAYS, turns, lambda way: some(way, block))
    crew.do(unwrap)
    medians = {}
    for way, turns_of_ranks in found.items():
        values = slowest(turns_of_ranks)
        medians[way] = statistics.median(values)
        run.results.add("steps", what, WAYS[way], values, ranks=size)
    for way, name in (("aiodist", "aiodist"), ("awaited", "ours")):
        ratio = [medians["gloo"] / medians[way]]
        run.results.add("steps", what, f"gloo / {name}", ratio, ranks=size, unit="ratio")


# ── on a rank ────────────────────────────────────────────────────────────────────────────────────────


async def wrap(peer: TorchPeer, shape: tuple[int, int, int]) -> None:
    """Wrap a network in each of the ways."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    width, layers, rows = shape
    inputs = torch.randn(rows, width, generator=torch.Generator().manual_seed(peer.rank))

    def network() -> Any:
        torch.manual_seed(0)
        made = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        return torch.nn.Sequential(*made)

    def wrapped(group: Any, hook: Any = None) -> Call:
        module = DistributedDataParallel(network(), process_group=group)
        if hook is not None:
            module.register_comm_hook(None, hook)

        async def step() -> None:
            module.zero_grad()
            module(inputs).square().mean().backward()

        return step

    def nothing(_, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with classes
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ours = await dist.DistributedDataParallel(network(), peer.pg)

    async def awaited() -> None:
        ours.zero_grad()
        ours(inputs).square().mean().backward()
        await ours.sync()

    peer.kept["steps"] = {
        "gloo": wrapped(peer.gloo),
        "aiodist": wrapped(None),
        "awaited": awaited,
        "nothing": wrapped(None, nothing),
    }


async def unwrap(peer: TorchPeer) -> None:
    """Let go of the networks."""
    peer.kept.clear()


async def taken_by(peer: TorchPeer, way: str, count: int) -> list[float]:
    """Seconds of so many steps, after one more: then the caches are its own again."""
    step: Call = peer.kept["steps"][way]
    await peer.barrier()
    await step()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await step()
        times.append(time.perf_counter() - began)
    return times
