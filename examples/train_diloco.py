"""Train a classifier of handwritten digits: ranks talk to each other every 40 steps only.

    aiodist run --nproc-per-node 4 examples/train_diloco.py
    aiodist run --nproc-per-node 4 --max-restarts 10 examples/train_diloco.py --way streaming --codec int4

Kill any worker at any moment: the others go on, and the one that replaces it gets the common values.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import aiodist as dist

STEPS, EVERY, BATCH, RATE = 600, 40, 32, 0.1
STREAMING: dict[str, Any] = {"fragments": 2, "delay": 5, "mix": 0.5}


def train(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> None:
    """A step down the cross entropy of a softmax over images @ weights."""
    scores = np.exp(images @ weights - (images @ weights).max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    scores[np.arange(len(labels)), labels] -= 1
    weights -= RATE * images.T @ scores / np.float32(len(labels))


async def main(way: str, codec: str | None) -> None:
    """Each rank trains on images of its own."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    async with dist.join() as pg:
        weights = np.zeros((64, 10), np.float32)
        make = dist.LocalSGD if way == "local-sgd" else dist.DiLoCo
        more = STREAMING if way == "streaming" else {}
        halves = [weights[:32], weights[32:]]
        diloco = await make(pg, halves, sync_every=EVERY, codec=codec, elastic=True, **more)
        while diloco.steps < STEPS:
            random = np.random.default_rng([diloco.pg.rank, diloco.steps])
            mine = random.integers(0, 1437 // diloco.pg.size, BATCH) * diloco.pg.size + diloco.pg.rank
            await asyncio.to_thread(train, weights, images[mine], labels[mine])
            await diloco.step()
            if diloco.pg.rank == 0 and diloco.steps % 200 == 0:
                right = float(((images[1437:] @ weights).argmax(axis=1) == labels[1437:]).mean())
                said = f"step {diloco.steps}: {right:.3f} of held-out digits, {diloco.pg.size} ranks"
                print(said, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=["diloco", "streaming", "local-sgd"], default="diloco")
    parser.add_argument("--codec", choices=["int8", "int4"])
    options, _ = parser.parse_known_args()
    dist.run(main(options.way, options.codec))
