"""Checkpoints where members die: what was lost is loaded, and a write that died with a member is no error."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist.ddp.checkpoint.checkpoints as module
from aiodist.base.errors import CheckpointError, GroupBroken, StateLost
from aiodist.ddp import Checkpoints, ShardedOptimizer
from aiodist.ddp.checkpoint import files
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.levels import COSTLY

STEPS = 12


def momentum(values: np.ndarray, gradient: np.ndarray, state: dict[str, Any]) -> None:
    velocity = state.setdefault("velocity", np.zeros_like(values))
    velocity += gradient - velocity / 4
    values -= velocity / 8


def gradient(step: int, rank: int, size: int) -> np.ndarray:
    """A rank's share of 60 items, times the size: whole numbers, so that averages are exact for any size."""
    mine = sum(1 + number + step for number in range(60) if number % size == rank)
    return np.array([size * mine * (1 + at % 3) for at in range(10)], np.float64)


def straight() -> bytes:
    values, state = np.zeros(10), dict[str, Any]()
    for step in range(STEPS):
        momentum(values, gradient(step, 0, 1), state)
    return values.tobytes()


async def step(optimizer: ShardedOptimizer) -> bool:
    return bool(await optimizer.step([gradient(optimizer.steps, optimizer.pg.rank, optimizer.pg.size)]))


@pytest.mark.slow(COSTLY)
@spmd(world_size=4, exits={1: -9})
async def test_what_died_is_loaded_by_the_survivors(pg: ProcessGroup, tmp_path: Path) -> None:
    async with Checkpoints(pg, tmp_path) as checkpoints:

        async def restore(optimizer: ShardedOptimizer) -> None:
            await checkpoints.load(optimizer=optimizer)

        values, me, seen = np.zeros(10), pg.rank, []
        optimizer = await ShardedOptimizer(pg, [values], momentum, elastic=True, restore=restore)
        while optimizer.steps < STEPS:
            if (optimizer.steps, me) == (7, 1):
                os.kill(os.getpid(), signal.SIGKILL)
            seen.append(optimizer.steps)
            if await step(optimizer) and optimizer.steps % 3 == 0:
                saving = await checkpoints.save(optimizer.steps, optimizer=optimizer)
                assert saving is not None
                await saving
        assert seen == [0, 1, 2, 3, 4, 5, 6, 7, *range(6, STEPS)]
        assert optimizer.pg.size == 3 and values.tobytes() == straight()


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, exits={2: -9})
async def test_the_program_may_load_by_itself(pg: ProcessGroup, tmp_path: Path) -> None:
    async with Checkpoints(pg, tmp_path) as checkpoints:
        values, me = np.zeros(10), pg.rank
        optimizer = await ShardedOptimizer(pg, [values], momentum, elastic=True)
        while optimizer.steps < STEPS:
            if (optimizer.steps, me) == (5, 2):
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                if await step(optimizer) and optimizer.steps == 4:
                    saving = await checkpoints.save(4, optimizer=optimizer)
                    assert saving is not None
                    await saving
            except StateLost:
                with pytest.raises(StateLost):
                    await optimizer
                assert await checkpoints.load(optimizer=optimizer)
                await optimizer
                assert optimizer.steps == 4
        assert optimizer.pg.size == 2 and values.tobytes() == straight()


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, exits={2: -9})
async def test_a_write_that_a_death_interrupts_is_no_checkpoint(
    pg: ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = pg.rank

    def write(path: Path, arrays: Any, stop: threading.Event) -> int:
        if me == 2 and "step-6" in str(path):
            os.kill(os.getpid(), signal.SIGKILL)
        return files.write(path, arrays, stop)

    module.write = write  # type: ignore[attr-defined]
    async with Checkpoints(pg, tmp_path) as checkpoints:
        values = np.zeros(10)
        optimizer = await ShardedOptimizer(pg, [values], momentum, elastic=True, redundancy=1)
        saving: Any = None
        while optimizer.steps < STEPS:
            if await step(optimizer) and optimizer.steps in (4, 6):
                saving = await checkpoints.save(optimizer.steps, optimizer=optimizer)
                if optimizer.steps == 4:
                    await saving
        with pytest.raises(GroupBroken):
            await saving
        assert await checkpoints.steps() == [4]
        last = await checkpoints.save(STEPS, optimizer=optimizer)
        assert last is not None
        await last
        assert optimizer.pg.size == 2 and values.tobytes() == straight()


@spmd(world_size=3, exits={2: -9})
async def test_a_death_when_a_checkpoint_begins(pg: ProcessGroup, tmp_path: Path) -> None:
    async with Checkpoints(pg, tmp_path) as checkpoints:
        values, me = np.zeros(10), pg.rank
        optimizer = await ShardedOptimizer(pg, [values], momentum, elastic=True, redundancy=1)
        failed = 0
        while optimizer.steps < STEPS:
            counted = await step(optimizer)
            if (optimizer.steps, me) == (5, 2):
                os.kill(os.getpid(), signal.SIGKILL)
            if counted and optimizer.steps in (5, 9):
                saving = await checkpoints.save(optimizer.steps, optimizer=optimizer)
                assert saving is not None
                try:
                    await saving
                except GroupBroken:
                    failed += 1
        assert failed == 1 and await checkpoints.steps() == [9]
        assert optimizer.pg.size == 2 and values.tobytes() == straight()


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, exits={2: -9})
async def test_a_failed_write_is_told_though_a_member_dies_as_the_next_save_begins(
    pg: ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, arrays: Any, stop: threading.Event) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    values = np.arange(9.0)
    async with Checkpoints(pg, tmp_path) as checkpoints:
        module.write = full  # type: ignore[attr-defined]
        saving = await checkpoints.save(1, x=values)
        assert saving is not None
        await saving.ended()
        module.write = files.write  # type: ignore[attr-defined]
        await pg.barrier()
        if pg.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(GroupBroken):
            lost = await checkpoints.save(2, x=values)
            assert lost is not None
            await lost
        await pg.rebuild()
        with pytest.raises(CheckpointError, match="No space left"):
            await checkpoints.save(3, x=values)
        whole = await checkpoints.save(4, x=values)
        assert whole is not None
        await whole
