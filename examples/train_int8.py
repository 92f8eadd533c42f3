"""Train a classifier of handwritten digits, data-parallel: gradients travel with 8 bits a value.

    aiodist run --nproc-per-node 4 examples/train_int8.py
    aiodist run --nproc-per-node 4 --max-restarts 10 examples/train_int8.py --codec int4

Kill any worker at any moment: the others do its step again without it, and the one that replaces it gets
their weights.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import aiodist as dist

STEPS, BATCH, RATE = 600, 32, 0.1


def gradient(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> Any:
    """Of the cross entropy of a softmax over images @ weights."""
    scores = np.exp(images @ weights - (images @ weights).max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    scores[np.arange(len(labels)), labels] -= 1
    return images.T @ scores / np.float32(len(labels))


async def main(codec: str | None) -> None:
    """All ranks have the same weights, and each a part of every batch."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    async with dist.join() as pg:
        weights, step = np.zeros((64, 10), np.float32), np.zeros(1, np.int64)
        sync = await dist.GradientSync(pg, [weights], elastic=True, state=[step], codec=codec)
        while step[0] < STEPS:
            batch = np.random.default_rng([7, step[0]]).integers(0, 1437, BATCH)
            mine = batch[sync.pg.rank :: sync.pg.size]
            sync.ready(0, gradient(weights, images[mine], labels[mine]))
            for average in await sync.finish():  # none where the members have changed
                weights -= RATE * average
                step += 1
                if sync.pg.rank == 0 and step[0] % 200 == 0:
                    right = float(((images[1437:] @ weights).argmax(axis=1) == labels[1437:]).mean())
                    print(f"step {step[0]}: {right:.3f} of held-out digits, {sync.pg.size} ranks", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--codec", choices=["int8", "int4"], default="int8")
    dist.run(main(parser.parse_known_args()[0].codec))
