"""The random programs of `testing.check_backend`, on device tensors."""

from __future__ import annotations

import asyncio

from aiodist.group import ProcessGroup
from aiodist.testing.issued import perform
from aiodist.testing.programs import program
from tests.gpu.tensors import Library


async def check_programs(pg: ProcessGroup, lib: Library, seed: int, length: int = 60) -> None:
    """One operation after the other, and then all at once.

    All have been carried out before they are issued at once: `lib` copies strided tensors by kernels of its
    own, which must be loaded while the device is idle.
    """
    for part in (seed, seed + 1):
        for step in program(part, pg.size, length):
            if lib.has(step.dtype):
                await perform(pg, step, lib)
    async with asyncio.TaskGroup() as tasks:
        for step in program(seed + 1, pg.size, length):
            if lib.has(step.dtype):
                tasks.create_task(perform(pg, step, lib))
