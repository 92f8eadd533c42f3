"""One rank: trains a module by each wrapper in turn, and measures the steps.

All wrappers run in the same processes and take turns of a few steps each, so what else the machine does
befalls all of them. A step is forward, backward and what makes the gradients averages; no optimizer.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import torch
import torch.distributed as c10d
from torch.nn.parallel import DistributedDataParallel

import aiodist as dist

Step = Callable[[], Awaitable[None]]
SHAPES: dict[str, tuple[int, int, int]] = {
    "64 KiB": (64, 4, 8),
    "1 MiB": (256, 4, 8),
    "4 MiB": (512, 4, 8),
    "24 MiB": (1024, 6, 4),
    "24 MiB, more computing": (1024, 6, 64),
    "96 MiB": (2048, 6, 4),
    "216 MiB": (3072, 6, 4),
}
"""Bytes of gradients → width, layers, and rows of a batch."""


def network(width: int, layers: int) -> torch.nn.Module:
    """Linear layers with ReLU."""
    torch.manual_seed(0)
    made = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*made)


def nothing(_: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """A comm hook that sends nothing: what the wrapper itself costs."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


nothing.__annotations__.clear()  # torch compares them with classes, and these are strings


def blocking(module: torch.nn.Module, inputs: torch.Tensor) -> Step:
    """A step of torch's wrapper."""

    async def step() -> None:
        module.zero_grad()
        module(inputs).square().mean().backward()

    return step


async def steps_of(pg: Any, gloo: Any, shape: tuple[int, int, int], as_view: bool) -> dict[str, Step]:
    """The peers, by name."""
    width, layers, rows = shape
    inputs = torch.randn(rows, width, generator=torch.Generator().manual_seed(pg.rank))

    def wrapped(group: Any, hook: Any = None) -> Step:
        module = DistributedDataParallel(
            network(width, layers), process_group=group, gradient_as_bucket_view=as_view
        )
        if hook is not None:
            module.register_comm_hook(None, hook)
        return blocking(module, inputs)

    ours = await dist.DistributedDataParallel(network(width, layers), pg, gradient_as_bucket_view=as_view)

    async def awaited() -> None:
        ours.zero_grad()
        ours(inputs).square().mean().backward()
        await ours.sync()

    return {
        "gloo": wrapped(gloo),
        "aiodist": wrapped(None),
        "awaited": awaited,
        "nothing": wrapped(None, nothing),
    }


async def measure(pg: Any, steps: dict[str, Step], seconds: float) -> dict[str, list[float]]:
    """Seconds of each step, by peer."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():  # torch lays its buckets out anew after the first
        await step()
        await step()
    started = time.perf_counter()
    for step in steps.values():
        await step()
    longest = await pg.all_gather_object(time.perf_counter() - started)
    block = max(2, min(20, int(0.3 / max(longest))))
    rounds = max(5, int(seconds / (block * max(longest))))
    for _ in range(rounds):
        for name, step in steps.items():
            await pg.barrier()
            await step()  # the caches are its own again
            for _ in range(block):
                began = time.perf_counter()
                await step()
                times[name].append(time.perf_counter() - began)
    return times


async def main() -> None:
    """Measure all shapes; rank 0 writes a line of JSON for each."""
    torch.set_num_threads(1)
    names, seconds, as_view = sys.argv[1].split(";"), float(sys.argv[2]), sys.argv[3] == "view"
    c10d.init_process_group("aiodist")
    gloo = c10d.new_group(backend="gloo")
    async with await dist.init_process_group() as pg:
        for name in names:
            times = await measure(pg, await steps_of(pg, gloo, SHAPES[name], as_view), seconds)
            medians = {peer: statistics.median(found) for peer, found in times.items()}
            slowest = [
                max(rows) for rows in zip(*await pg.all_gather_object(list(medians.values())), strict=True)
            ]
            if pg.rank == 0:
                print("figures", json.dumps({name: dict(zip(medians, slowest, strict=True))}), flush=True)
    c10d.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main())
