"""200 collectives at once over five overlapping groups, each rank in its own order: no deadlock, all right.

Members of a group issue its collectives in one order, as they must; how the groups' calls interleave
differs from rank to rank. Where backpressure of one group held up another, this would wait for ever.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from aiodist.backends.work import Work
from aiodist.base.types import Kind
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual, spmd
from aiodist.testing.programs import COLLECTIVES, Step, program
from aiodist.transport.memory import MemoryNetwork
from tests.levels import COSTLY, few

MEMBERS = ((0, 1, 2, 3), (0, 1, 2), (1, 2, 3), (0, 3), (0, 1, 2, 3))
EACH = 40
KINDS = [kind for kind in COLLECTIVES if kind is not Kind.send]


def value(step: Step, rank: int) -> Any:
    """A global rank's tensor at a step."""
    count = 4 * 3 * (1 + step.salt % (3 if step.salt % 5 else 5000))  # also past every threshold
    return (np.arange(count, dtype=np.int64) * (rank + 2) + step.salt).reshape(12, -1)


async def check_concurrent_groups(pg: ProcessGroup, seed: int) -> None:
    """Issue everything without awaiting anything, then await it in another order, and check."""
    groups = [await pg.new_group(ranks) for ranks in MEMBERS]
    programs = [program(seed + number, len(ranks), EACH, KINDS) for number, ranks in enumerate(MEMBERS)]
    mine = [number for number, group in enumerate(groups) if group is not None]
    order = [number for number in mine for _ in range(EACH)]
    rng = random.Random(seed * 100 + pg.rank)
    rng.shuffle(order)
    nexts = [iter(steps) for steps in programs]
    issued = []
    for number in order:
        step, group = next(nexts[number]), groups[number]
        assert group is not None
        issued.append((step, number, issue(group, step, pg.rank)))
    rng.shuffle(issued)
    for step, number, work in issued:
        result, expected = await work, outcome(step, MEMBERS[number], pg.rank)
        where = f"group {number}, {step.describe()}"
        assert (result is None) == (expected is None), where
        assert expected is None or np.array_equal(np.asarray(result).reshape(-1), expected.reshape(-1)), where
    await pg.barrier()
    for group in groups:
        if group is not None:
            await group.aclose()


def issue(group: ProcessGroup, step: Step, rank: int) -> Work[Any]:
    """Start a step on this rank."""
    mine, size = value(step, rank), group.size
    match step.kind:
        case Kind.all_reduce:
            return group.all_reduce(mine, async_op=True)
        case Kind.broadcast:
            return group.broadcast(mine, step.root, async_op=True)
        case Kind.reduce:
            return group.reduce(mine, step.root, async_op=True)
        case Kind.all_gather:
            return group.all_gather(mine, async_op=True)
        case Kind.reduce_scatter:
            return group.reduce_scatter(mine, async_op=True)
        case Kind.gather:
            return group.gather(mine, step.root, async_op=True)
        case Kind.scatter:
            rows = np.stack([mine + part for part in range(size)]) if group.rank == step.root else None
            return group.scatter(np.zeros_like(mine), rows, step.root, async_op=True)
        case Kind.all_to_all:
            return group.all_to_all(mine, async_op=True)
        case _:
            return group.barrier(async_op=True)


def outcome(step: Step, ranks: tuple[int, ...], rank: int) -> Any:
    """What the step must give on a global rank, by NumPy."""
    inputs = np.stack([value(step, member) for member in ranks])
    me, size = ranks.index(rank), len(ranks)
    share = len(inputs[0]) // size
    part = slice(me * share, (me + 1) * share)
    match step.kind:
        case Kind.all_reduce:
            return inputs.sum(0)
        case Kind.broadcast:
            return inputs[step.root]
        case Kind.reduce:
            return inputs.sum(0) if me == step.root else None
        case Kind.all_gather:
            return inputs
        case Kind.reduce_scatter:
            return inputs.sum(0)[part]
        case Kind.gather:
            return inputs if me == step.root else None
        case Kind.scatter:
            return inputs[step.root] + me
        case Kind.all_to_all:
            return inputs[:, part]
        case _:
            return None


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("transport", few(["shm", "tcp"], ["shm"]))
@spmd(world_size=4)
async def test_200_collectives_at_once_between_processes(pg: ProcessGroup, transport: str) -> None:
    for seed in range(3):
        await check_concurrent_groups(pg, seed)


async def test_200_collectives_at_once_in_one_process() -> None:
    await run_cluster(4, lambda pg: check_concurrent_groups(pg, 10))


@pytest.mark.parametrize("seed", few(range(5), [0]))
def test_200_collectives_at_once_over_a_slow_network(seed: int) -> None:
    delays = np.random.default_rng(seed)
    network = MemoryNetwork(delay=lambda src, dst: float(delays.exponential(0.01)))
    run_virtual(run_cluster(4, lambda pg: check_concurrent_groups(pg, seed), network=network))
