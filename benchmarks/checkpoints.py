"""The longest pause of a training loop: without checkpoints, and with them, written in several ways.

    python -m benchmarks.checkpoints [--ranks 2] [--mib 64] [--rounds 5] [--folder DIR] [--json FILE]

A ShardedOptimizer with two arrays of state for each value: so three times the model is saved. Each round has
eight steps for each way, in turn, and one checkpoint after the fourth step. An iteration is a step and what
`save` takes after it. The loop's pause is what a task that sleeps 1 ms at a time finds on top of that. The
figures are those of the slowest rank.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import aiodist as dist
from benchmarks.ending import run_main
from benchmarks.machine import facts

STEPS, AT, TICK = 8, 3, 0.001
WAYS = {
    "none": "no checkpoint",
    "save": "`save`: written by a thread",
    "wait": "`save`, and awaited",
    "loop": "np.save of the share, in the loop",
}


def main(argv: Sequence[str]) -> int:
    """Start the ranks, which print a table."""
    parser = argparse.ArgumentParser("python -m benchmarks.checkpoints", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=64, help="of the model, float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where checkpoints go; a temporary one by default")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    if "RANK" in os.environ:
        dist.run(rank(options))
        return 0
    folder = options.folder or tempfile.mkdtemp(prefix="checkpoints-")
    launcher = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", str(options.ranks)]
    try:
        words = [*launcher, "-m", "benchmarks.checkpoints", *argv, "--folder", folder]
        return subprocess.run(words, check=False).returncode
    finally:
        if not options.folder:
            shutil.rmtree(folder)


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


async def rank(options: argparse.Namespace) -> None:
    """Measure on one rank; rank 0 prints the medians of the rounds."""
    names = ("step", "iteration", "gap", "save", "disk")
    found: dict[str, dict[str, list[float]]] = {way: {name: [] for name in names} for way in WAYS}
    async with (
        dist.init_process_group() as pg,
        dist.Checkpoints(pg, options.folder, keep=1) as checkpoints,
    ):
        count = (options.mib << 18) // 4
        weights = [np.ones(count, np.float32) for _ in range(4)]
        gradients = [np.full(count, 1.0 + pg.rank + i, np.float32) for i in range(4)]
        optimizer = await dist.ShardedOptimizer(pg, weights, adam)
        for turn in range(options.rounds + 1):
            for way in WAYS:
                await pg.barrier()
                seen = await one_round(optimizer, gradients, checkpoints, way, options.folder)
                slowest = await pg.all_reduce(np.array(seen), dist.ReduceOp.MAX)
                if turn:  # the first one touches memory
                    for name, value in zip(names, slowest, strict=True):
                        found[way][name].append(float(value))
        if pg.rank == 0:
            show(options, found)


async def one_round(
    optimizer: dist.ShardedOptimizer,
    gradients: Sequence[Any],
    checkpoints: dist.Checkpoints,
    way: str,
    folder: str,
) -> tuple[float, ...]:
    """Eight steps with one checkpoint → seconds: a usual step, the longest iteration, the loop's longest
    pause, the call of `save`, and until it is on the disk."""
    ended = asyncio.Event()
    gaps = asyncio.create_task(longest_gap(ended))
    steps, iterations, saved = [], [], 0.0
    writing: asyncio.Task[float] | None = None
    for step in range(STEPS):
        began = time.perf_counter()
        await optimizer.step(gradients)
        steps.append(time.perf_counter() - began)
        if step == AT:
            called = time.perf_counter()
            if way == "loop":
                in_the_loop(optimizer, Path(folder) / f"loop-{optimizer.pg.rank}.npy")
            elif way != "none":
                saving = await checkpoints.save(optimizer.steps, optimizer=optimizer)
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


def show(options: argparse.Namespace, found: dict[str, dict[str, list[float]]]) -> None:
    """Print the table."""
    machine = facts()
    lines = {
        way: {name: statistics.median(values) for name, values in told.items()} for way, told in found.items()
    }
    print(f"{options.ranks} ranks, {options.mib} MiB of float32, {machine['cpu']}, {options.rounds} rounds\n")
    print("| | usual step | longest iteration | longest pause of the loop | `save` | on the disk after |")
    print("|---|---|---|---|---|---|")
    for way, told in lines.items():
        cells = [f"{told[name] * 1e3:.0f} ms" if told[name] else "" for name in told]
        print(f"| {WAYS[way]} | {' | '.join(cells)} |")
    sys.stdout.flush()
    if options.json:
        text = json.dumps({"machine": machine, "lines": lines, "all": found}, indent=1)
        Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    run_main(main)
