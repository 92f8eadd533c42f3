"""all_reduce beside torch's gloo, in the same processes, interleaved.

    aiodist run --nproc-per-node 2 benchmarks/all_reduce.py

Each size is measured in turns, gloo and aiodist, so that both see the same machine; the figures are
medians over all turns of the time per operation, on rank 0. Without torch only aiodist is measured.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

import aiodist as dist

SIZES = {
    "8 B": 8,
    "1 KiB": 1 << 10,
    "64 KiB": 64 << 10,
    "1 MiB": 1 << 20,
    "16 MiB": 16 << 20,
    "64 MiB": 64 << 20,
}


def gloo(port: int, rank: int, size: int) -> Any:
    """torch.distributed on gloo, or None where torch is not installed."""
    try:
        import torch.distributed as peer
    except ImportError:
        return None
    peer.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=60),
    )
    return peer


async def turn(repeats: int, once: Callable[[], Awaitable[Any]]) -> list[float]:
    """Seconds of each of some operations in a row."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        await once()
        times.append(time.perf_counter() - began)
    return times


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    async with await dist.init_process_group() as pg:
        port = np.zeros(1, np.int64)
        if pg.rank == 0:
            import socket

            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port[0] = probe.getsockname()[1]
        await pg.broadcast(port)
        peer = gloo(int(port[0]), pg.rank, pg.size)
        if pg.rank == 0:
            transport = os.environ.get("AIODIST_TRANSPORT", "auto")
            print(f"{pg.size} ranks, float32, AIODIST_TRANSPORT={transport}; medians per operation")
            print(f"{'size':>8} {'aiodist':>12} {'gloo':>12} {'gloo / aiodist':>15}")
        for name, nbytes in SIZES.items():
            ours = np.zeros(nbytes // 4, np.float32)
            repeats = max(3, min(300, (8 << 20) // nbytes))
            mine: list[float] = []
            theirs: list[float] = []

            async def ours_once(tensor: Any = ours) -> None:
                await pg.all_reduce(tensor)

            if peer is not None:
                import torch

                other = torch.zeros(nbytes // 4)

                async def gloo_once(tensor: Any = other) -> None:
                    peer.all_reduce(tensor)

            for number in range(options.turns + 1):  # the first one warms up
                await pg.barrier()
                taken = await turn(repeats, ours_once)
                mine += taken if number else []
                if peer is not None:
                    peer.barrier()
                    taken = await turn(repeats, gloo_once)
                    theirs += taken if number else []
            if pg.rank == 0:
                us = statistics.median(mine) * 1e6
                if theirs:
                    gloo_us = statistics.median(theirs) * 1e6
                    print(f"{name:>8} {us:>9.1f} µs {gloo_us:>9.1f} µs {gloo_us / us:>14.2f}×", flush=True)
                else:
                    print(f"{name:>8} {us:>9.1f} µs {'not installed':>12}", flush=True)
        if peer is not None:
            peer.destroy_process_group()


if __name__ == "__main__":
    dist.run(main())
