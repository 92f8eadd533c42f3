"""A pool of mpi4py.futures whose two workers are the ranks of a group, by arguments."""

from __future__ import annotations

import socket
import tempfile

import numpy as np
from mpi4py.futures import MPIPoolExecutor

import aiodist as dist


def member(rank: int, size: int, meet: str) -> str:
    """One rank: meets the other one, and says hello."""

    async def main() -> str:
        async with await dist.init_process_group(rank=rank, world_size=size, init_method=meet) as pg:
            total = np.array([pg.rank + 1.0])
            await pg.all_reduce(total)
            return (
                f"rank {pg.rank} of {pg.size}: local rank {pg.local_rank} of {pg.local_size}, "
                f"node {pg.node_rank} of {pg.node_count}, host {socket.gethostname()}, sum {total[0]:g}"
            )

    return dist.run(main())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, MPIPoolExecutor(max_workers=2) as pool:
        futures = [pool.submit(member, rank, 2, f"file://{folder}/meet") for rank in range(2)]
        print(*(future.result() for future in futures), sep="\n", flush=True)
