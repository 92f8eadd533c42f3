"""The random programs of `testing.check_backend`, on device tensors."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from aiodist.group import ProcessGroup
from aiodist.testing.programs import Step, program, reduced, same, same_bits, splits, value
from aiodist.types import Kind
from tests.gpu.tensors import Library


async def check_programs(pg: ProcessGroup, lib: Library, seed: int, length: int = 60) -> None:
    """One operation after the other, and then all at once."""
    for step in program(seed, pg.size, length):
        if lib.has(step.dtype):
            await perform(pg, lib, step)
    async with asyncio.TaskGroup() as tasks:
        for step in program(seed + 1, pg.size, length):
            if lib.has(step.dtype):
                tasks.create_task(perform(pg, lib, step))


async def perform(pg: ProcessGroup, lib: Library, step: Step) -> None:
    """One step on this rank; its result checked, and that the source is as it was."""
    before = value(step, pg.rank)
    if step.kind is Kind.all_to_all:
        before = value(step, pg.rank, sum(splits(step, pg.size)[pg.rank]))
    mine = lib.put(before, step.layout)
    alike = await _issue(pg, lib, step, mine)
    if not alike:
        bitwise(lib.get(mine), before, step)


async def _issue(pg: ProcessGroup, lib: Library, step: Step, mine: Any) -> bool:
    """Whether `mine` was to change."""
    size, rank, root = pg.size, pg.rank, step.root
    rows = (size, *step.shape)
    match step.kind:
        case Kind.barrier:
            await pg.barrier()
        case Kind.all_reduce if step.separate:
            out = lib.put(np.zeros(step.shape, step.dtype), step.layout)
            assert await pg.all_reduce(mine, step.op, out) is out
            same(lib.get(out), reduced(step, size), step)
        case Kind.all_reduce:
            assert await pg.all_reduce(mine, step.op) is mine
            same(lib.get(mine), reduced(step, size), step)
            return True
        case Kind.broadcast:
            assert await pg.broadcast(mine, root) is mine
            bitwise(lib.get(mine), value(step, root), step)
            return True
        case Kind.reduce:
            result = await pg.reduce(mine, root, step.op)
            assert (result is mine) == (rank == root)
            if rank == root:
                same(lib.get(mine), reduced(step, size), step)
            return rank == root
        case Kind.all_gather:
            out = lib.put(np.zeros(rows, step.dtype), step.layout) if step.separate else None
            result = await pg.all_gather(mine, out)
            bitwise(lib.get(result), np.stack([value(step, other) for other in range(size)]), step)
        case Kind.reduce_scatter:
            part = step.shape[0] // size
            result = await pg.reduce_scatter(mine, op=step.op)
            same(lib.get(result), reduced(step, size)[rank * part : (rank + 1) * part], step)
        case Kind.gather:
            result = await pg.gather(mine, root)
            assert (result is None) == (rank != root)
            if result is not None:
                bitwise(lib.get(result), np.stack([value(step, other) for other in range(size)]), step)
        case Kind.scatter:
            dealt = lib.put(value(step, root, size), step.layout) if rank == root else None
            assert await pg.scatter(mine, dealt, root) is mine
            bitwise(lib.get(mine), value(step, root, size)[rank], step)
            return True
        case Kind.all_to_all:
            await _all_to_all(pg, lib, step, mine)
        case Kind.send:
            target = (root + 1) % size
            if rank == root:
                await pg.send(mine, target, tag=step.salt)
            elif rank == target:
                into = lib.put(np.zeros(step.shape, step.dtype), step.layout)
                assert await pg.recv(into, root, tag=step.salt) == root
                bitwise(lib.get(into), value(step, root), step)
    return False


async def _all_to_all(pg: ProcessGroup, lib: Library, step: Step, mine: Any) -> None:
    table = splits(step, pg.size)
    if step.separate:
        result = await pg.all_to_all(mine)
    else:
        counts = [table[source][pg.rank] for source in range(pg.size)]
        result = await pg.all_to_all(mine, None, table[pg.rank], counts)
    parts = []
    for source in range(pg.size):
        start = sum(table[source][: pg.rank])
        theirs = value(step, source, sum(table[source]))
        parts.append(theirs[start : start + table[source][pg.rank]])
    bitwise(lib.get(result), np.concatenate(parts), step)


def bitwise(got: Any, expected: Any, step: Step) -> None:
    """Fail unless two arrays hold the same bytes."""
    assert same_bits(got, expected), step.describe()
