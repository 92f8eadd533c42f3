"""Calls while members die and come, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.services.under_way import CALLS
from aiodist.testing import run_cluster, run_virtual
from tests.support.chaos import Chaos


def run(size: int, main: Any, chaos: Chaos) -> list[Any]:
    """What each rank returned."""
    return run_virtual(run_cluster(size, main, processes=chaos, timeout=5.0))


def serve(pg: ProcessGroup, name: str) -> None:
    @pg.handler
    async def who(wait: float = 0.0) -> str:
        await asyncio.sleep(wait)
        return name


def test_a_newcomer_is_called_by_its_rank_and_the_dead_by_nobody() -> None:
    chaos = Chaos()

    async def newcomer(pg: ProcessGroup) -> str:
        serve(pg, "newcomer")
        await pg.barrier()
        answer: str = await pg.call(1, "who")
        await pg.barrier()
        return answer

    async def main(pg: ProcessGroup) -> Any:
        serve(pg, f"rank {pg.rank}")
        await pg.barrier()
        if pg.rank == 2:
            await asyncio.sleep(60)
        if pg.rank == 0:
            asyncio.get_running_loop().call_later(0.1, chaos.crash, 2)
            asyncio.get_running_loop().call_later(0.5, chaos.join, newcomer, 5.0)
            with pytest.raises(dist.CallUnknown, match="calling who on rank 2"):
                await pg.call(2, "who", 50.0)
        slow = asyncio.create_task(pg.call(1 - pg.rank, "who", 1.0))
        rebuilt = await pg.rebuild(min_size=3)
        assert (rebuilt.size, rebuilt.rank) == (3, pg.rank)
        assert await slow == f"rank {1 - pg.rank}"
        with pytest.raises(dist.CallNotRun):
            await pg.call(2, "who")
        await rebuilt.barrier()
        answer = await rebuilt.call(2, "who")
        await rebuilt.barrier()
        return answer

    results = run(3, main, chaos)
    assert results[:2] == ["newcomer", "newcomer"]
    assert [task.result() for task in chaos.joined] == ["rank 1"]


def test_who_is_excluded_is_called_no_more() -> None:
    async def main(pg: ProcessGroup) -> Any:
        serve(pg, f"rank {pg.rank}")
        await pg.barrier()
        if pg.rank == 2:
            with pytest.raises(dist.Evicted):
                await pg.barrier()
            return "evicted"
        waiting = asyncio.create_task(pg.call(2, "who", 4.0)) if pg.rank == 0 else None
        await asyncio.sleep(0.1)
        smaller = await pg.shrink([2])
        if waiting is not None:
            with pytest.raises(dist.CallUnknown):
                await waiting
        with pytest.raises(dist.CallNotRun, match="no member"):
            await pg.call(2, "who")
        answer = await smaller.call(1 - pg.rank, "who")
        await smaller.barrier()
        return answer

    assert run(3, main, Chaos()) == ["rank 1", "rank 0", "evicted"]


def test_a_death_fails_all_who_wait_and_nobody_else() -> None:
    """More than may be under way at once: those that were sent are unknown, the others have not run."""
    chaos = Chaos()

    async def main(pg: ProcessGroup) -> Any:
        serve(pg, f"rank {pg.rank}")
        await pg.barrier()
        if pg.rank:
            await asyncio.sleep(60)
            return None
        asyncio.get_running_loop().call_later(1.0, chaos.crash, 2)
        waiting = [asyncio.create_task(pg.call(2, "who", 50.0)) for _ in range(CALLS + 200)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        kinds = Counter(map(type, outcomes))
        assert kinds == {dist.CallUnknown: CALLS, dist.CallNotRun: 200}
        return await pg.call(1, "who")

    assert run(3, main, chaos)[0] == "rank 1"
