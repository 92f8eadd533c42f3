"""Calls with a timeout take the fast path, and time out as others do."""

from __future__ import annotations

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.levels import few

WAITING = ["all_reduce", "barrier", "all_gather"]
COLLECTIVES = [*WAITING, "broadcast"]
RECEIVES = ["recv", "recv_object"]


def start(pg: ProcessGroup, call: str, timeout: float | None) -> dist.Work[object]:
    """One operation of a kind, with distinct values by rank and element; a receive is from rank 1."""
    mine = np.arange(4) + 10 * pg.rank
    if call == "barrier":
        return pg.barrier(timeout=timeout)
    if call == "recv":
        return pg.recv(mine, 1, timeout=timeout)
    if call == "recv_object":
        return pg.recv_object(1, timeout=timeout)
    work: dist.Work[object] = getattr(pg, call)(mine, timeout=timeout)
    return work


@pytest.mark.parametrize("call", few([*WAITING, *RECEIVES], ["recv"]))
@spmd(world_size=2, transport="shm")
async def test_it_ends_at_the_timeout_of_the_call(pg: ProcessGroup, call: str) -> None:
    """Rank 1 takes part in the first operation, and not in the second."""
    if pg.rank == 0:
        await start(pg, call, 60)
        with pytest.raises(dist.CollectiveTimeout) as caught:
            await start(pg, call, 0.75)
        assert caught.value.timeout == 0.75
        return
    if call in RECEIVES:
        await (pg.send(np.arange(4) + 70, 0) if call == "recv" else pg.send_object({"a": 70}, 0))
    else:
        await start(pg, call, 60)
    with pytest.raises(dist.GroupBroken):
        await pg.recv(np.zeros(1), 0, tag=9)


@spmd(world_size=2, transport="shm")
async def test_a_timeout_takes_the_fast_path_and_what_is_none_is_refused(pg: ProcessGroup) -> None:
    await a_collective_with_a_timeout_needs_no_request(pg)
    await what_is_no_timeout_is_refused_before_a_number_is_taken(pg)


async def a_collective_with_a_timeout_needs_no_request(pg: ProcessGroup) -> None:
    """What the general path makes for each call (`GroupCore.issue`) is not made."""
    for call in COLLECTIVES:
        await start(pg, call, None)

    def refuse(*args: object, **named: object) -> None:
        raise AssertionError("the general path was taken")

    core = pg._core
    core.issue = refuse  # type: ignore[method-assign, assignment]
    for call in COLLECTIVES:
        await start(pg, call, 60)
    del core.issue


async def what_is_no_timeout_is_refused_before_a_number_is_taken(pg: ProcessGroup) -> None:
    there = 1 - pg.rank
    for given in (0, -1, True, "5", float("nan")):
        for call in (*COLLECTIVES, *RECEIVES):
            with pytest.raises(dist.UsageError, match="timeout must be a positive number"):
                start(pg, call, given)  # type: ignore[arg-type]
        with pytest.raises(dist.UsageError, match="timeout must be a positive number"):
            pg.send(np.arange(4), there, timeout=given)  # type: ignore[arg-type]
        with pytest.raises(dist.UsageError, match="timeout must be a positive number"):
            pg.send_object([4], there, timeout=given)  # type: ignore[arg-type]
    mine, theirs = np.array([1 + pg.rank]), np.zeros(1, np.int64)
    await pg.all_reduce(mine)  # the numbers are still alike
    sent = pg.send(mine + pg.rank, there)
    await pg.recv(theirs, there)
    await sent
    assert (mine[0], theirs[0]) == (3, 3 + there)
