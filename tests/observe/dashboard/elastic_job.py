"""A job whose ranks die and come back, until somebody makes the file that its argument names.

elastic_job.py GO
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np

import aiodist as dist


async def main() -> None:
    """Run it."""
    go = Path(sys.argv[1])
    pg = await dist.join(timeout=120)
    over = np.zeros(1)
    while not over[0]:
        try:
            over[0] = go.exists()
            await pg.all_reduce(over, op=dist.ReduceOp.MAX)
            halves = await pg.split(pg.rank % 2)
            assert halves is not None
            await halves.all_reduce(np.ones(3))
            await halves.aclose()
            if await pg.pending_joins():
                pg = await pg.rebuild(admit=True, timeout=120)
            await asyncio.sleep(0.01)
        except dist.GroupBroken:
            pg = await pg.rebuild(min_size=1, admit=True, timeout=120)
    await pg.aclose()


if __name__ == "__main__":
    asyncio.run(main())
