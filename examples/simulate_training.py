"""The communication of data-parallel training, for `aiodist sim`: gradients that overlap with computing.

    aiodist sim examples/simulate_training.py --ranks 4096 --network hosts=512x8,link=100Gbit/s:20us

Under `aiodist run` it does the same with real ranks.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import aiodist as dist
from aiodist.sim import compute

STEPS, BUCKETS, NBYTES, FORWARD, BACKWARD = 10, 4, 25 << 20, 0.05, 0.025


async def main(steps: int) -> None:
    """Ten steps: forward, then backward, each part of which has a bucket of gradients ready."""
    async with await dist.init_process_group() as pg:
        buckets = [np.empty(NBYTES // 4, np.float32) for _ in range(BUCKETS)]
        began = time.perf_counter()
        for _ in range(steps):
            compute(FORWARD)
            works = []
            for bucket in buckets:
                compute(BACKWARD)
                works.append(pg.all_reduce(bucket, dist.ReduceOp.AVG, async_op=True))
            for work in works:
                await work
        if pg.rank == 0:
            print(f"{(time.perf_counter() - began) / steps * 1e3:.1f} ms a step on {pg.size} ranks")


if __name__ == "__main__":
    dist.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS))
