"""The longest pause of a training loop, without checkpoints and with them, on two ranks.

A ShardedOptimizer with two arrays of state for each value: so three times the model is saved. Each turn of a
way has eight steps, and one checkpoint after the fourth. An iteration is a step and what `save` takes after
it. The loop's pause is what a task that sleeps 1 ms at a time finds on top of that.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import aiodist as dist
from benchmarks.harness.peers import AIODIST
from benchmarks.harness.run import Run, Step
from benchmarks.harness.turns import in_turns
from benchmarks.ranks.with_aiodist import AiodistPeer

STEPS, AT, TICK = 8, 3, 0.001
WAYS = {
    "none": "no checkpoint",
    "save": "`save`: written by a thread",
    "wait": "`save`, and awaited",
    "loop": "np.save of the share, in the loop",
}
FIGURES = ("usual step", "longest iteration", "longest pause of the loop", "`save`", "on the disk after")
_SIZE = 2


def checkpoints(run: Run) -> list[Step]:
    """All ways in turns, on a model of 64 MiB."""
    mib = 4 if run.settings.quick else 64
    return [Step("checkpoints", f"{mib} MiB", partial(_checkpoints, run, mib), _SIZE)]


def _checkpoints(run: Run, mib: int) -> None:
    crew = run.crew(AIODIST, _SIZE)
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
        crew.do(open_training, folder=folder, mib=mib)

        def one_round(way: str) -> list[float]:
            return [max(column) for column in zip(*crew.do(round_of, way=way, folder=folder), strict=True)]

        taken = in_turns(run, WAYS, run.settings.turns, one_round)
        crew.do(close_training)
    for way, rounds in taken.items():
        for what, values in zip(FIGURES, zip(*rounds, strict=True), strict=True):
            if any(values):
                run.results.add("checkpoints", what, WAYS[way], values, ranks=_SIZE, nbytes=mib << 20)


# ── on a rank ────────────────────────────────────────────────────────────────────────────────────────


async def open_training(peer: AiodistPeer, folder: str, mib: int) -> None:
    """Make what is trained and saved."""
    count = (mib << 18) // 4
    weights = [np.ones(count, np.float32) for _ in range(4)]
    peer.kept["gradients"] = [np.full(count, 1.0 + peer.rank + i, np.float32) for i in range(4)]
    peer.kept["optimizer"] = await dist.ShardedOptimizer(peer.pg, weights, adam)
    peer.kept["checkpoints"] = await dist.Checkpoints(peer.pg, folder, keep=1).__aenter__()


async def close_training(peer: AiodistPeer) -> None:
    """Let go of it."""
    await peer.kept["checkpoints"].__aexit__(None, None, None)
    peer.kept.clear()


def adam(values: Any, gradient: Any, state: dict[str, Any]) -> None:
    """Two arrays of state, as Adam has."""
    mean = state.setdefault("mean", np.zeros_like(values))
    square = state.setdefault("square", np.zeros_like(values))
    mean += (gradient - mean) * np.float32(0.1)
    square += (gradient * gradient - square) * np.float32(0.01)
    values -= np.float32(1e-3) * mean / (np.sqrt(square) + np.float32(1e-6))


async def longest_gap(ended: asyncio.Event) -> float:
    """The longest time for which the loop did not run this task, in seconds."""
    longest, before = 0.0, time.perf_counter()
    while not ended.is_set():
        await asyncio.sleep(TICK)
        now = time.perf_counter()
        longest, before = max(longest, now - before - TICK), now
    return longest


async def round_of(peer: AiodistPeer, way: str, folder: str) -> Sequence[float]:
    """Eight steps with one checkpoint → seconds: a usual step, the longest iteration, the loop's longest
    pause, the call of `save`, and until it is on the disk."""
    optimizer: dist.ShardedOptimizer = peer.kept["optimizer"]
    await peer.barrier()
    ended = asyncio.Event()
    gaps = asyncio.create_task(longest_gap(ended))
    steps, iterations, saved = [], [], 0.0
    writing: asyncio.Task[float] | None = None
    for step in range(STEPS):
        began = time.perf_counter()
        await optimizer.step(peer.kept["gradients"])
        steps.append(time.perf_counter() - began)
        if step == AT and way != "none":
            called = time.perf_counter()
            if way == "loop":
                in_the_loop(optimizer, Path(folder) / f"loop-{optimizer.pg.rank}.npy")
            else:
                saving = await peer.kept["checkpoints"].save(optimizer.steps, optimizer=optimizer)
                assert saving is not None
                writing = asyncio.create_task(whole(saving))
                if way == "wait":
                    await writing
            saved = time.perf_counter() - called
        iterations.append(time.perf_counter() - began)
    disk = 0.0 if writing is None else await writing - called
    ended.set()
    return statistics.median(steps), max(iterations), await gaps, saved, disk


async def whole(saving: dist.Saving) -> float:
    """The time when a checkpoint is on the disk."""
    await saving
    return time.perf_counter()


def in_the_loop(optimizer: dist.ShardedOptimizer, path: Path) -> None:
    """Write what this rank holds as programs often do."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        for told in optimizer.state_dict()["arrays"].values():
            for parts in (told["values"], *told["elements"].values()):
                for _, array in parts.parts:
                    np.save(file, array)
        file.flush()
        os.fsync(file.fileno())
