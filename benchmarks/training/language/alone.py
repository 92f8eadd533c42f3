"""The processor time of a step on one core, without communication; one line of JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch

from benchmarks.training.language import text
from benchmarks.training.language.model import SHAPES, Learner

STEPS = 20


def measure(shape: str) -> dict[str, Any]:
    """Median seconds of the parts of a step, and the number of the model's values."""
    sizes, codes = SHAPES[shape], text.corpus().train
    learner = Learner(sizes, 1e-3)
    rows: list[tuple[float, float, float]] = []
    told: list[float] = []

    def tell(index: int, gradient: Any) -> None:
        told.append(time.process_time())

    for step in range(1 + STEPS):
        inputs, targets = text.batch(codes, 0, step, sizes.batch, sizes.length)
        told.clear()
        began = time.process_time()
        learner.backward(inputs, targets, tell)
        back = time.process_time()
        learner.update()
        rows.append((told[0] - began, back - told[0], time.process_time() - back))
    forward, backward, update = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    count = sum(one.numel() for one in learner.parameters)
    return {"forward": forward, "backward": backward, "update": update, "values": count}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(sys.argv[1])))
