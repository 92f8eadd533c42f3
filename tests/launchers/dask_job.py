"""Ranks on the two workers of a local Dask cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from aiodist.integrations.dask import run


async def hello(pg: Any, scale: float) -> str:
    total = np.array([scale * (pg.rank + 1)])
    await pg.all_reduce(total)
    return (
        f"rank {pg.rank} of {pg.size}: local rank {pg.local_rank} of {pg.local_size}, "
        f"node {pg.node_rank} of {pg.node_count}, sum {total[0]:g}"
    )


async def fails(pg: Any) -> None:
    await pg.barrier()
    if pg.rank == 1:
        raise ValueError("rank 1 has had enough")
    await pg.barrier()


if __name__ == "__main__":
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        print(*run(client, hello, 1.0), sep="\n", flush=True)
        try:
            run(client, fails)
        except ValueError as error:
            print(f"failed as it should: {error}")
