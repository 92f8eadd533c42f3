"""Effects of all_reduces on the loop beside them, and of computing on them; two ranks."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from functools import partial
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.cli.bench.lateness import Ticker
from aiodist.cli.bench.measures import quantile, show_size
from aiodist.cli.bench.sweep import lateness as while_reducing
from benchmarks.harness.peers import AIODIST
from benchmarks.harness.run import Run, Step
from benchmarks.ranks.with_aiodist import AiodistPeer

KINDS = ("numpy", "python")
FACTORS = (1.0, 3.0)
GROUPS, EACH = 10, 100
_SIZE = 2
_ELEMENTS = 256  # 1 KiB
_SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def lateness(run: Run) -> list[Step]:
    """A 1 ms ticker on the loop while the ranks saturate their cores."""
    nbytes = 16 << 20 if run.settings.quick else 256 << 20
    label = f"all_reduces of {show_size(nbytes)}"
    return [Step("lateness", label, partial(_lateness, run, nbytes), _SIZE)]


def _lateness(run: Run, nbytes: int) -> None:
    seconds = 0.5 if run.settings.quick else 3.0
    rounds = [
        run.crew(AIODIST, _SIZE).do(late, nbytes=nbytes, seconds=seconds)
        for _ in range(1 if run.settings.quick else 3)
    ]
    for name in ("p50", "p99", "max", "idle_p99"):
        worst = [max(rank[name] for rank in found) for found in rounds]
        run.results.add("lateness", name, "aiodist", worst, ranks=_SIZE, nbytes=nbytes)


def loaded(run: Run) -> list[Step]:
    """A 1 ms ticker while 1,000 small all_reduces are in flight, 100 in each of ten groups."""
    return [Step("load", f"{GROUPS * EACH} in flight", partial(_loaded, run), _SIZE)]


def _loaded(run: Run) -> None:
    seconds = 0.5 if run.settings.quick else 2.0
    rounds = [
        run.crew(AIODIST, _SIZE).do(late_under_load, groups=GROUPS, each=EACH, seconds=seconds)
        for _ in range(1 if run.settings.quick else 3)
    ]
    for name in ("p50", "p99", "max", "one"):
        worst = [max(rank[name] for rank in found) for found in rounds]
        run.results.add("load", name, "aiodist", worst, ranks=_SIZE, nbytes=1 << 10)


def overlap(run: Run) -> list[Step]:
    """An all_reduce beside NumPy products, and beside Python bytecode, on the loop's thread."""
    nbytes = 16 << 20 if run.settings.quick else 64 << 20
    return [
        Step("overlap", f"{kind}, {factor:g}×", partial(_overlap, run, nbytes, kind, factor), _SIZE)
        for kind in KINDS
        for factor in FACTORS
    ]


def _overlap(run: Run, nbytes: int, kind: str, factor: float) -> None:
    cores = len(os.sched_getaffinity(0))
    crew = run.crew(AIODIST, _SIZE)
    ratios = [
        against_ideal(crew.do(overlapping, nbytes=nbytes, kind=kind, factor=factor, turns=3), cores)
        for _ in range(1 if run.settings.quick else 3)
    ]
    what = f"{kind} {factor:g}×"
    run.results.add("overlap", what, "aiodist", ratios, ranks=_SIZE, nbytes=nbytes, unit="ratio")


def against_ideal(ranks: list[dict[str, float]], cores: int) -> float:
    """Both together, over the least that these cores allow: the longer alone, or all CPU time spread."""
    longest = max(max(rank["reduce"], rank["compute"]) for rank in ranks)
    spent = sum(rank["cpu"] for rank in ranks) / cores
    return max(rank["both"] for rank in ranks) / max(longest, spent)


# ── on a rank ────────────────────────────────────────────────────────────────────────────────────────


async def late(peer: AiodistPeer, nbytes: int, seconds: float) -> dict[str, float]:
    """The lateness of a 1 ms ticker during all_reduces, and on the idle loop."""
    await peer.barrier()
    ticker = Ticker()
    ticker.start()
    await asyncio.sleep(seconds / 4)
    idle = ticker.stop()
    await peer.barrier()
    found = await while_reducing(peer.pg, nbytes, seconds)
    return _quantiles(found) | {"idle_p99": quantile(idle, 0.99)}


async def late_under_load(peer: AiodistPeer, groups: int, each: int, seconds: float) -> dict[str, float]:
    """The lateness of a 1 ms ticker with many small all_reduces in flight, and what one takes."""
    found, one = await load(peer.pg, groups, each, seconds)
    return _quantiles(found) | {"one": one}


def _quantiles(found: list[float]) -> dict[str, float]:
    return {name: quantile(found, share) for name, share in _SHARES.items()}


async def load(pg: dist.ProcessGroup, groups: int, each: int, seconds: float) -> tuple[list[float], float]:
    """Keep `each` all_reduces of 1 KiB in flight in each of some groups of all ranks, for about so long.

    Returns:
        The lateness of each tick of a 1 ms ticker, and seconds for one all_reduce.
    """
    several = [await pg.new_group(name=f"load {number}") for number in range(groups)]
    found = [group for group in several if group is not None]
    try:
        for group in found:
            await _in_flight(group, each, 0.0)  # its plans are made
        await pg.barrier()
        ticker = Ticker()
        ticker.start()
        began = time.perf_counter()
        rounds = await asyncio.gather(*(_in_flight(group, each, seconds) for group in found))
        taken = time.perf_counter() - began
        late = ticker.stop()
    finally:
        for group in found:
            await group.aclose()
    return late, taken / (sum(rounds) * each)


async def _in_flight(group: dist.ProcessGroup, each: int, seconds: float) -> int:
    """Rounds of so many at once until the first rank says that it is time → how many rounds."""
    rows = [np.full(_ELEMENTS, number, np.float32) for number in range(each)]
    until = time.perf_counter() + seconds
    going, rounds = np.ones(1), 0
    while going[0]:
        rounds += 1
        works = [group.all_reduce(row, dist.ReduceOp.MAX, async_op=True) for row in rows]
        for work in works:
            await work
        going[0] = time.perf_counter() < until
        await group.broadcast(going)
    for number, row in enumerate(rows):
        assert row[0] == row[-1] == number
    return rounds


async def overlapping(
    peer: AiodistPeer, nbytes: int, kind: str, factor: float, turns: int
) -> dict[str, float]:
    """An all_reduce beside computing on the same thread: medians of each alone and of both, seconds.

    The computing takes about `factor` times as long as the all_reduce, and never yields.
    """
    tensor = np.zeros(nbytes // 4, np.float32)
    compute = COMPUTE[kind]
    reduce_alone = [await _alone(peer, tensor) for _ in range(3)]
    wall = statistics.median(sample[0] for sample in reduce_alone)
    compute(3)
    began = time.perf_counter()
    compute(10)
    count = max(1, round(factor * wall / ((time.perf_counter() - began) / 10)))
    taken: dict[str, list[float]] = {key: [] for key in ("reduce", "compute", "both", "cpu")}
    for _ in range(turns):
        reduce_wall, reduce_cpu = await _alone(peer, tensor)
        await peer.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        compute(count)
        compute_wall = time.perf_counter() - began
        compute_cpu = time.process_time() - cpu
        await peer.barrier()
        began = time.perf_counter()
        work = peer.pg.all_reduce(tensor, async_op=True)
        compute(count)
        await work
        both = time.perf_counter() - began
        for key, value in zip(
            taken, (reduce_wall, compute_wall, both, reduce_cpu + compute_cpu), strict=True
        ):
            taken[key].append(value)
    return {key: statistics.median(values) for key, values in taken.items()}


async def _alone(peer: AiodistPeer, tensor: Any) -> tuple[float, float]:
    await peer.barrier()
    began, cpu = time.perf_counter(), time.process_time()
    await peer.pg.all_reduce(tensor)
    return time.perf_counter() - began, time.process_time() - cpu


def _products(count: int) -> None:
    for _ in range(count):
        np.matmul(_LEFT, _LEFT, out=_PRODUCT)


def _bytecode(count: int) -> None:
    total = 0
    for _ in range(count):
        for number in range(5000):
            total += number & 3


_LEFT = np.ones((192, 192), np.float32)
_PRODUCT = np.empty_like(_LEFT)
COMPUTE = {"numpy": _products, "python": _bytecode}
