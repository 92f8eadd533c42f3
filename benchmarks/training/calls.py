"""One rank: small blocking calls beside what they are made of.

A blocking call of aiodist hands its operation over to the portal's thread and waits. So it is measured beside
that alone (*hand-over*: the same way there and back, with nothing to do), and beside the same operation
awaited on the loop.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as c10d

ROUNDS, CALLS = 12, 100


def one_by_one(call: Callable[[], object]) -> list[float]:
    """Seconds of each call."""
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return times


async def awaited(pg: Any, tensor: torch.Tensor) -> list[float]:
    """Seconds of each awaited operation, on the portal's loop."""
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await pg.all_reduce(tensor)
        times.append(time.perf_counter() - began)
    return times


def measure(nbytes: int, gloo: Any) -> dict[str, float]:
    """Median seconds by kind of call, taking turns."""
    tensor = torch.zeros(nbytes // 4)
    ours = c10d.group.WORLD.ours
    turns: dict[str, Callable[[], list[float]]] = {
        "hand-over": lambda: one_by_one(lambda: ours.portal.call(int)),
        "awaited": lambda: list(ours.portal.call(awaited, ours, tensor)),
        "portal": lambda: one_by_one(lambda: ours.all_reduce(tensor)),
        "torch over aiodist": lambda: one_by_one(lambda: c10d.all_reduce(tensor)),
        "torch over gloo": lambda: one_by_one(lambda: c10d.all_reduce(tensor, group=gloo)),
    }
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(ROUNDS):
        for name, turn in turns.items():
            c10d.barrier()
            times[name] += turn()
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure all sizes; rank 0 writes a line of JSON for each."""
    torch.set_num_threads(1)
    c10d.init_process_group("aiodist")
    gloo = c10d.new_group(backend="gloo")
    for nbytes in map(int, sys.argv[1].split(";")):
        found = measure(nbytes, gloo)
        if c10d.get_rank() == 0:
            print("figures", json.dumps({f"{nbytes} B": found}), flush=True)
    c10d.destroy_process_group()


if __name__ == "__main__":
    main()
