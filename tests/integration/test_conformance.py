"""The same conformance checks on real processes, over shared memory and over TCP."""

from __future__ import annotations

import pytest

from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from aiodist.testing.conformance_backend import check_backend, check_concurrent, check_program
from tests.levels import COSTLY, few


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("transport", few(["shm", "tcp"], ["shm"]))
@pytest.mark.parametrize("world_size", few(range(1, 9), [3]))
@spmd()
async def test_backend(pg: ProcessGroup, world_size: int, transport: str) -> None:
    await check_backend(pg, seed=pg.size)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("transport", few(["shm", "tcp"], ["tcp"]))
@pytest.mark.parametrize("world_size", few([2, 3, 5], [3]))
@spmd()
async def test_random_programs_equal_numpy(pg: ProcessGroup, world_size: int, transport: str) -> None:
    for seed in range(6):
        await check_program(pg, 100 + seed, 40, big=20_000)
        await check_concurrent(pg, 200 + seed, 40)


@pytest.mark.parametrize("transport", few(["shm", "tcp"], ["tcp"]))
@spmd(world_size=3, env={"AIODIST_EAGER": "0"})
async def test_without_eager_messages(pg: ProcessGroup, transport: str) -> None:
    for seed in range(3):
        await check_program(pg, 300 + seed, 30)
        await check_concurrent(pg, 400 + seed, 30)
