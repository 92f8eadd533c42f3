"""The communication of an algorithm's steps, for `aiodist sim`: as many values as the model has, no training.

aiodist sim benchmarks/training/language/simulated.py --ranks 64 -- streaming 3238498 0.03 0.06 0.004
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

import numpy as np

import aiodist as dist
from benchmarks.training.language.ways import BUCKET_MB, WAYS

PARTS = 8  # arrays in the place of the model's: each is large enough to be a size only


async def main(name: str, count: int, forward: float, backward: float, update: float) -> None:
    """Some steps; rank 0 says how long one takes, in seconds."""
    way = WAYS[name]
    async with await dist.init_process_group() as pg:
        weights = [np.zeros(count // PARTS, np.float32) for _ in range(PARTS)]
        step: Callable[[], Awaitable[object]]
        if way.rare:
            steps = 2 * int(way.rare["sync_every"])
            diloco = await dist.DiLoCo(pg, weights, codec=way.codec, **way.rare)

            async def step() -> None:
                await asyncio.sleep(forward + backward + update)
                await diloco.step()

        else:
            steps = 2
            sync = await dist.GradientSync(pg, weights, BUCKET_MB, codec=way.codec)

            async def step() -> None:
                await asyncio.sleep(forward)
                for index in reversed(range(PARTS)):
                    await asyncio.sleep(backward / PARTS)
                    sync.ready(index, weights[index])
                await sync.finish()
                await asyncio.sleep(update)

        await pg.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            await step()
        if pg.rank == 0:
            print(json.dumps({"step": (time.perf_counter() - began) / steps}), flush=True)


if __name__ == "__main__":
    dist.run(main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:])))
