"""The random programs of `testing.check_backend`, on device tensors."""

from __future__ import annotations

import asyncio

from aiodist.group import ProcessGroup
from aiodist.testing.issued import perform
from aiodist.testing.programs import program
from tests.gpu.tensors import Library


async def check_programs(pg: ProcessGroup, lib: Library, seed: int, length: int = 60) -> None:
    """One operation after the other, and then all at once."""
    for step in program(seed, pg.size, length):
        if lib.has(step.dtype):
            await perform(pg, step, lib)
    async with asyncio.TaskGroup() as tasks:
        for step in program(seed + 1, pg.size, length):
            if lib.has(step.dtype):
                tasks.create_task(perform(pg, step, lib))
