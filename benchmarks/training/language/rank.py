"""What one rank of a run does: it trains until a time, and looks at the time and the bytes now and then.

The losses are computed after the training, from the values that were kept, so they take none of its time.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from typing import Any

import numpy as np
import torch

from benchmarks.harness.counters import crossed
from benchmarks.ranks.base import Peer
from benchmarks.ranks.with_aiodist import AiodistPeer
from benchmarks.training.language import text
from benchmarks.training.language.model import SHAPES, Learner
from benchmarks.training.language.trainers import Trainer, trainer
from benchmarks.training.language.ways import WAYS

PIECES = 64  # of the held-out text
ALONE = 20  # steps
Row = dict[str, float]


class Training:
    """A rank's training by one algorithm, between two orders.

    Attributes:
        points: what was seen at each point of the curve, with the values there; of rank 0 only.
    """

    def __init__(self, peer: AiodistPeer, learner: Learner, trainer: Trainer, shape: str, look: int) -> None:
        self.learner, self.points = learner, list[tuple[Row, list[Any]]]()
        self.shape = SHAPES[shape]
        self._pg, self._trainer, self._look = peer.pg, trainer, look
        self._codes = text.corpus().train
        self._began, self._first, self._step = time.perf_counter(), crossed(), 0
        if peer.rank == 0:
            beginning = {"seconds": 0.0, "step": 0, "sent": 0.0, "received": 0.0}
            self.points.append((beginning, learner.values()))

    async def until(self, seconds: float) -> Row:
        """Train until rank 0 has done so for so long, and keep the values → what it has seen."""
        while True:
            self._step += 1
            shape = self.shape
            batch = text.batch(self._codes, self._pg.rank, self._step, shape.batch, shape.length)
            await self._trainer.step(*batch)
            if not self._trainer.settled or (self._look and self._step % self._look):
                continue
            received, sent = (now - then for now, then in zip(crossed(), self._first, strict=True))
            mine = np.array([time.perf_counter() - self._began, received, sent])
            rows = (await self._pg.all_gather(mine)).reshape(self._pg.size, 3)
            if rows[0, 0] < seconds:
                continue
            seen: Row = {"seconds": float(rows[0, 0]), "step": self._step}
            seen |= {"sent": float(rows[:, 2].mean()), "received": float(rows[:, 1].mean())}
            if self._pg.rank == 0:
                self.points.append((seen, self._trainer.values()))
            return seen | {"loss": self.learner.loss}


async def begin(peer: AiodistPeer, name: str, shape: str) -> None:
    """Make a model and its trainer; the time runs from here on."""
    torch.set_num_threads(1)
    way, sizes = WAYS[name], SHAPES[shape]
    learner = Learner(sizes, way.rate)
    batch = text.batch(text.corpus().train, peer.rank, 0, sizes.batch, sizes.length)
    await asyncio.to_thread(learner.backward, *batch)  # torch makes itself ready
    made = await trainer(peer.pg, learner, way)
    await peer.barrier()
    peer.kept["training"] = Training(peer, learner, made, shape, way.look)


async def train(peer: AiodistPeer, seconds: float) -> Row:
    """Train until so many seconds after the beginning."""
    training: Training = peer.kept["training"]
    return await training.until(seconds)


async def curve(peer: AiodistPeer) -> dict[str, Any]:
    """The losses at all points on rank 0, and how many values the model has."""
    training: Training = peer.kept.pop("training")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    inputs, targets = text.samples(text.corpus().held_out, PIECES, training.shape.length)
    points = [
        row | {"loss": training.learner.held_out(values, inputs, targets)} for row, values in training.points
    ]
    return {"curve": points, "values": sum(one.numel() for one in training.learner.parameters)}


async def alone(peer: Peer, shape: str) -> dict[str, Any]:
    """The processor seconds of a step on one core, without communication: the medians of its parts."""
    torch.set_num_threads(1)
    sizes, codes = SHAPES[shape], text.corpus().train
    learner = Learner(sizes, 1e-3)
    rows: list[tuple[float, float, float]] = []
    told: list[float] = []
    for step in range(1 + ALONE):
        batch = text.batch(codes, 0, step, sizes.batch, sizes.length)
        told.clear()
        began = time.process_time()
        learner.backward(*batch, lambda index, gradient: told.append(time.process_time()))
        back = time.process_time()
        learner.update()
        rows.append((told[0] - began, back - told[0], time.process_time() - back))
    forward, backward, update = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    count = sum(one.numel() for one in learner.parameters)
    return {"forward": forward, "backward": backward, "update": update, "values": count}
