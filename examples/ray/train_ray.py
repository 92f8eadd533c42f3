"""Ray Train with aiodist: each worker adds up, and reports the sum.

python examples/ray/train_ray.py --workers 4
"""

from __future__ import annotations

import argparse

import numpy as np
import ray
import ray.train
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import aiodist as dist
from aiodist.integrations.ray import AiodistConfig


async def main() -> None:
    """Meet the other workers, and average something."""
    async with await dist.init_process_group() as pg:
        total = np.array([pg.rank + 1.0])
        await pg.all_reduce(total)
        print(
            f"rank {pg.rank} of {pg.size}: local rank {pg.local_rank} of {pg.local_size}, "
            f"node {pg.node_rank} of {pg.node_count}, sum {total[0]:g}",
            flush=True,
        )
        ray.train.report({"sum": float(total[0]), "size": pg.size})


def train() -> None:
    """What each worker runs; Ray gives it a thread."""
    dist.run(main())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    trainer = DataParallelTrainer(
        train,
        backend_config=AiodistConfig(),
        scaling_config=ScalingConfig(num_workers=options.workers),
    )
    trainer.fit()
