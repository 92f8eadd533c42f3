"""Train a torch classifier of digits; each rank keeps AdamW's state of its share, and they save checkpoints.

    aiodist run --nproc-per-node 4 --max-restarts 10 examples/train_sharded.py

Kill any worker at any moment: another one has a copy of its share, and the one that replaces it gets what it
needs. Stop the job and start it again, with any number of workers: it goes on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import torch
from sklearn.datasets import load_digits

import aiodist as dist

BATCH, HELD_OUT = 128, 360


async def main(steps: int, folder: str) -> None:
    """Each rank takes every so many-th image of a batch."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
    labels = torch.tensor(digits.target)[order]
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    async with dist.join() as pg, dist.Checkpoints(pg, folder, keep=2) as checkpoints:

        async def restore(optimizer: dist.ShardedOptimizer) -> None:
            found = await checkpoints.load(optimizer=optimizer)
            if found is not None and optimizer.pg.rank == 0:
                print(f"going on from step {found.step}, which {found.size} ranks saved", flush=True)

        survives: Any = {"elastic": True, "redundancy": 1, "restore": restore}
        parameters, kind = model.parameters(), torch.optim.AdamW
        optimizer = await dist.ShardedOptimizer(pg, parameters, kind, lr=3e-3, max_norm=1.0, **survives)
        while optimizer.steps < steps:
            random = torch.Generator().manual_seed(optimizer.steps)
            batch = torch.randint(HELD_OUT, len(labels), (BATCH,), generator=random)
            mine = batch[optimizer.pg.rank :: optimizer.pg.size]
            loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine])
            optimizer.zero_grad()
            await asyncio.to_thread(loss.backward)
            # an empty list: somebody died or came, and the step is done again
            if await optimizer.step() and optimizer.steps % 50 == 0:
                await checkpoints.save(optimizer.steps, optimizer=optimizer)
                right = (model(images[:HELD_OUT]).argmax(1) == labels[:HELD_OUT]).float().mean()
                if optimizer.pg.rank == 0:
                    told = f"{right:.3f} of held-out digits, {optimizer.pg.size} ranks"
                    print(f"step {optimizer.steps}: {told}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--folder", default="checkpoints")
    dist.run(main(**vars(parser.parse_args())))
