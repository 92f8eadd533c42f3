"""One process of a training: it comes, trains as a rank, and leaves what has come out in a file."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np

import aiodist as dist
from benchmarks.training.digits.algorithms import ALGORITHMS, Task
from benchmarks.training.digits.board import Board
from benchmarks.training.digits.model import Data


async def main(folder: Path, name: str, seed: int, steps: int) -> None:
    """Train.

    Args:
        folder: with the board and the digits.
        name: of the algorithm.
        seed: of the training.
        steps: how many.
    """
    slot = int(os.environ["RANK"])
    with np.load(folder / "digits.npz") as found:
        data = Data(**found)
    task = Task(data, seed, steps, slot, Board(folder / "board"))
    task.board.here(slot)
    algorithm = ALGORITHMS[name]
    async with dist.join() as pg:
        network = await algorithm.train(pg, task, **algorithm.options)
    outcome = {
        "loss": network.loss(data.images, data.labels),
        "held_out": network.loss(data.held_images, data.held_labels),
        "accuracy": network.accuracy(data.held_images, data.held_labels),
        "weights": hashlib.blake2b(b"".join(map(np.ndarray.tobytes, network.weights))).hexdigest()[:32],
    }
    (folder / f"end-{slot}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    where, which, seed_given, steps_given = sys.argv[1:]
    dist.run(main(Path(where), which, int(seed_given), int(steps_given)))
