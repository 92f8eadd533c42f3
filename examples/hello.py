"""Print which ranks are here, and add up their numbers, under any launcher.

    aiodist run --nproc-per-node 4 examples/hello.py
    aiodist launch -H a:4,b:4 examples/hello.py
    torchrun --nproc-per-node 4 examples/hello.py
    mpirun -n 4 python examples/hello.py
    srun -n 4 python examples/hello.py

Rank 0 prints a line for each rank: where it is, and the sum of all ranks' numbers, which every rank has
checked.
"""

from __future__ import annotations

import argparse
import os

import numpy as np

import aiodist as dist


async def hello(backend: str | None) -> None:
    """Meet, add up, and have rank 0 say who is here."""
    async with await dist.init_process_group(backend) as pg:
        total = np.array([pg.rank + 1.0])
        await pg.all_reduce(total)
        assert total[0] == pg.size * (pg.size + 1) / 2, total
        me = (
            f"rank {pg.rank} of {pg.size}: local rank {pg.local_rank} of {pg.local_size}, "
            f"node {pg.node_rank} of {pg.node_count}, host {pg.hosts[pg.rank]}, pid {os.getpid()}, "
            f"sum {total[0]:g}"
        )
        lines = await pg.gather_object(me)
        if lines is not None:
            print(*lines, sep="\n", flush=True)


def main() -> None:
    """Read the command line; launchers add words of their own to it, such as --local_rank=0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", help="host, mpi… (what the machine has)")
    options, _ = parser.parse_known_args()
    dist.run(hello(options.backend))


if __name__ == "__main__":
    main()
