"""The table of algorithms, each as a program would use it.

A new one is a line in `ALGORITHMS`, and a coroutine where no other one fits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import aiodist as dist
from benchmarks.training.digits.board import Board
from benchmarks.training.digits.model import DECAY, Data, Network

BATCH = 64  # images of a step over all ranks of a full job
RANKS = 4
RATE, MOMENTUM = 0.05, 0.9


@dataclass(frozen=True)
class Task:
    """One rank's part of a training.

    Args:
        data: the digits.
        seed: of initial weights and of the order of images.
        steps: how many to do.
        slot: of this process in the job; its rank changes.
        board: where it says what it does.
    """

    data: Data
    seed: int
    steps: int
    slot: int
    board: Board


Train = Callable[..., Awaitable[Network]]


@dataclass(frozen=True)
class Algorithm:
    """A way to train.

    Args:
        title: for the table and the figure.
        train: does it, by one rank: `await train(pg, task, **options)` gives the trained network.
        options: of the class that it is about.
        equal: it promises the result of a run without deaths.
    """

    title: str
    train: Train
    options: Mapping[str, Any] = field(default_factory=dict)
    equal: bool = False


def gradients_of(network: Network, task: Task, step: int, rank: int, size: int) -> list[Any]:
    """Gradients of a rank's images of a batch, of which the average over all ranks is the batch's sum."""
    batch = np.random.default_rng([2, task.seed, step]).permutation(len(task.data.labels))[:BATCH]
    mine = batch[rank::size]
    found = network.gradients(task.data.images[mine], task.data.labels[mine])
    return [gradient * size for gradient in found]


async def every_step(pg: dist.ProcessGroup, task: Task, **options: Any) -> Network:
    """Train with gradients that are averaged at each step; the living share each batch."""
    network, step = Network(task.seed), np.zeros(1, np.int64)
    state = [*network.velocity, step]
    sync = await dist.GradientSync(pg, network.weights, 0.01, elastic=True, state=state, **options)
    while step[0] < task.steps:
        await task.board.turn(task.slot, int(step[0]))
        found = gradients_of(network, task, int(step[0]), sync.pg.rank, sync.pg.size)
        for index, gradient in reversed(list(enumerate(found))):
            sync.ready(index, gradient)
        averages = await sync.finish()
        if averages:
            network.step([average / BATCH for average in averages], RATE, MOMENTUM)
            step += 1
    return network


async def sharded(pg: dist.ProcessGroup, task: Task, **options: Any) -> Network:
    """Train as `every_step`, with a share of the optimizer's state on each rank, and copies on others."""
    network = Network(task.seed)

    def update(values: Any, gradient: Any, state: dict[str, Any]) -> None:
        """What `Network.step` does, to a piece."""
        velocity = state.setdefault("velocity", np.zeros_like(values))
        velocity *= MOMENTUM
        velocity += gradient / BATCH + DECAY * values
        values -= RATE * velocity

    options |= {"elastic": True, "bucket_cap_mb": 0.01}
    optimizer = await dist.ShardedOptimizer(pg, network.weights, update, **options)
    while optimizer.steps < task.steps:
        await task.board.turn(task.slot, optimizer.steps)
        rank, size = optimizer.pg.rank, optimizer.pg.size
        await optimizer.step(gradients_of(network, task, optimizer.steps, rank, size))
    return network


async def rarely(
    pg: dist.ProcessGroup, task: Task, kind: Callable[..., dist.DiLoCo] = dist.DiLoCo, **options: Any
) -> Network:
    """Train each rank with images of its own, and exchange what they have moved now and then."""
    network = Network(task.seed)
    fragments = options.setdefault("fragments", [[0, 1, 2, 3]])
    diloco = await kind(pg, network.weights, elastic=True, **options)
    last = task.steps + options.get("delay", 0)  # the last exchange is applied then
    while diloco.steps < last:
        await task.board.turn(task.slot, diloco.steps)
        rank, size = diloco.pg.rank, diloco.pg.size
        random = np.random.default_rng([3, task.seed, diloco.steps, rank])
        mine = random.choice(np.arange(rank, len(task.data.labels), size), BATCH // RANKS, replace=False)
        found = network.gradients(task.data.images[mine], task.data.labels[mine])
        network.step([gradient / len(mine) for gradient in found], RATE, MOMENTUM)
        await diloco.step()
    for indices, flat in zip(fragments, diloco.state_dict()["values"], strict=True):
        parts = np.split(flat, np.cumsum([network.weights[index].size for index in indices])[:-1])
        for index, part in zip(indices, parts, strict=True):
            network.weights[index] = part.reshape(network.weights[index].shape)
    return network


ALGORITHMS = {
    "ddp": Algorithm("GradientSync", every_step, equal=True),
    "ddp-int8": Algorithm('GradientSync(codec="int8")', every_step, {"codec": "int8"}),
    "zero": Algorithm("ShardedOptimizer", sharded, {"redundancy": 2}, equal=True),
    "local-sgd": Algorithm("LocalSGD", rarely, {"kind": dist.LocalSGD, "sync_every": 8}),
    "diloco": Algorithm("DiLoCo", rarely, {"sync_every": 20}),
    "streaming": Algorithm(
        "DiLoCo(fragments, delay, codec)",
        rarely,
        {"sync_every": 20, "fragments": [[0], [1, 2, 3]], "delay": 3, "mix": 0.5, "codec": "int4"},
    ),
}
