"""What the error of an operation that ran out of time says of a rank whose event loop was busy."""

from __future__ import annotations

import asyncio
import contextlib
import time

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.helpers import core_of
from tests.levels import COSTLY, MORE, few

BUSY = 2.0
"""Seconds for which a rank's loop does not turn."""


async def with_busy(pg: ProcessGroup, rank: int, published: bool) -> dist.CollectiveTimeout | None:
    """An all_reduce in which a rank's loop is busy, after it has published its part or before. → what the
    others get."""
    await pg.barrier()
    tensor = np.full(40_000, pg.rank + 1.0)  # each rank's loop, or thread, has a part in the reduction
    if pg.rank != rank:
        with pytest.raises(dist.CollectiveTimeout) as caught:
            await pg.all_reduce(tensor, timeout=BUSY / 3)
        return caught.value
    work = pg.all_reduce(tensor, async_op=True) if published else None
    time.sleep(BUSY)
    with contextlib.suppress(dist.GroupBroken):  # it may find all that it needs
        await (work or pg.all_reduce(tensor))
    return None


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("rank", few([0, 1], [0]))  # the leader, for whom nobody answers, and another one
@spmd(world_size=3)
async def test_who_has_published_is_said_to_have_arrived(pg: ProcessGroup, rank: int) -> None:
    error = await with_busy(pg, rank, published=True)
    if error is not None:
        assert (error.missing, error.unheard) == ((), ()), error
        assert f"all ranks had arrived; rank {rank} (" in str(error)
        assert "does not answer: its event loop is busy" in str(error)


@pytest.mark.slow(MORE)
@spmd(world_size=3)
async def test_who_has_not_published_and_does_not_answer_is_not_said_to_have_arrived(
    pg: ProcessGroup,
) -> None:
    error = await with_busy(pg, 1, published=False)
    if error is not None:
        assert "rank 1 did not answer" in str(error)
        assert (error.missing, error.unheard) == ((), (1,))


@spmd(world_size=2, transport="shm")
async def test_who_was_busy_finds_what_has_ended_meanwhile(pg: ProcessGroup) -> None:
    await pg.barrier()
    tensor = np.arange(500_000) + 7 * pg.rank  # so many that a thread adds them
    work = pg.all_reduce(tensor, async_op=True, timeout=0.2 if pg.rank else 60)
    if pg.rank:
        time.sleep(0.4)
    await work
    assert np.array_equal(tensor, 2 * np.arange(500_000) + 7)


@pytest.mark.slow(COSTLY)
@spmd(world_size=3)
async def test_a_leader_that_does_not_answer_is_followed_by_the_next_member(pg: ProcessGroup) -> None:
    await pg.barrier()
    if pg.rank == 0:
        time.sleep(2 * BUSY)
    elif pg.rank == 2:
        while core_of(pg).error is None:  # noqa: ASYNC110 - nothing else tells who has issued nothing
            await asyncio.sleep(0.01)
    else:
        with pytest.raises(dist.CollectiveTimeout) as caught:
            await pg.all_reduce(np.ones(3), timeout=BUSY)
        assert (caught.value.missing, caught.value.unheard) == ((2,), (0,)), caught.value
