"""Runs of one job, one after the other, at a store that outlives them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from tests.group.epochs.elastic import crash, total, until_broken
from tests.support.chaos import STORE, Chaos


@pytest.mark.parametrize("call", ["rebuild", "agree"])
def test_a_member_that_comes_back_when_all_ranks_have_begun_anew_has_no_say(call: str) -> None:
    """It was cut off from the store, and the others of its run are dead. It must not go on as the job, and
    the new run must not find what that has had decided."""
    first, second = Chaos(), Chaos(seed=1)

    async def both() -> list[Any]:
        told, over = asyncio.Event(), asyncio.Event()

        async def stays(pg: ProcessGroup) -> None:
            if pg.rank == 1:
                first.cut([1], [STORE], 9)
                crash(first, 0)
            await until_broken(pg)
            try:
                with pytest.raises((dist.QuorumLost, dist.Evicted), match="begun anew"):
                    await (pg.rebuild(timeout=20) if call == "rebuild" else pg.agree(True, timeout=20))
            finally:
                told.set()
            await over.wait()

        async def begins(pg: ProcessGroup) -> tuple[int, int]:
            await told.wait()
            new = await pg.rebuild()
            return new.epoch, await total(new)

        before = asyncio.create_task(run_cluster(2, stays, processes=first, timeout=30.0))
        await asyncio.sleep(5)
        second.meet_at_store_of(first)
        try:
            return await run_cluster(2, begins, processes=second, timeout=30.0)
        finally:
            over.set()
            await before

    assert run_virtual(both()) == [(1, 0b11)] * 2
