"""One rank of a run: trains for some seconds, and looks at the time and the bytes now and then.

Rank 0 writes lines of JSON: `seen` while it trains, and in the end `curve`, with the losses of what it has
kept, and how many values the model has. The losses are computed after the training, so they take none of its
time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from typing import Any

import numpy as np
import torch

import aiodist as dist
from benchmarks.harness.counters import crossed
from benchmarks.training.language import text
from benchmarks.training.language.model import SHAPES, Learner
from benchmarks.training.language.trainers import trainer
from benchmarks.training.language.ways import WAYS, Way

POINTS, PIECES = 16, 64  # of a curve; of the held-out text
Row = dict[str, Any]


async def train(way: Way, options: argparse.Namespace) -> tuple[list[tuple[Row, list[Any]]], Learner]:
    """Train → what rank 0 has seen at each point of the curve, with the values there; and the learner."""
    shape, codes = SHAPES[options.shape], text.corpus().train
    learner = Learner(shape, way.rate)
    points: list[tuple[Row, list[Any]]] = []
    async with dist.init_process_group() as pg:

        def batch(step: int) -> tuple[text.Tokens, text.Tokens]:
            return text.batch(codes, pg.rank, step, shape.batch, shape.length)

        await asyncio.to_thread(learner.backward, *batch(0))  # torch makes itself ready
        training = await trainer(pg, learner, way)
        await pg.barrier()
        began, first, step = time.perf_counter(), crossed(), 0
        if pg.rank == 0:
            points.append(({"seconds": 0.0, "step": 0, "sent": 0.0, "received": 0.0}, learner.values()))
        while True:
            step += 1
            await training.step(*batch(step))
            if not training.settled or (way.look and step % way.look):
                continue
            received, sent = (now - then for now, then in zip(crossed(), first, strict=True))
            mine = np.array([time.perf_counter() - began, received, sent])
            rows = (await pg.all_gather(mine)).reshape(pg.size, 3)
            seconds, ends = float(rows[0, 0]), bool(rows[0, 0] >= options.seconds)
            if pg.rank == 0:
                seen: Row = {"seconds": seconds, "step": step}
                seen |= {"sent": float(rows[:, 2].mean()), "received": float(rows[:, 1].mean())}
                print(json.dumps({"seen": seen | {"loss": learner.loss}}), flush=True)
                if ends or seconds >= len(points) * options.seconds / POINTS:
                    points.append((seen, training.values()))
            if ends:
                break
    return points, learner


def main() -> None:
    """Train, and measure the losses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=list(WAYS))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--shape", choices=list(SHAPES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    points, learner = asyncio.run(train(WAYS[options.way], options))
    if points:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        length = SHAPES[options.shape].length
        inputs, targets = text.samples(text.corpus().held_out, PIECES, length)
        curve = [row | {"loss": learner.held_out(values, inputs, targets)} for row, values in points]
        count = sum(one.numel() for one in learner.parameters)
        print(json.dumps({"curve": curve, "values": count}), flush=True)


if __name__ == "__main__":
    main()
