"""A failure that nobody awaited is raised when the group is closed; one that somebody was told is not."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from tests.helpers import core_of


def ends(pg: ProcessGroup) -> bool:
    """Rank 1 ends the group and issues nothing; True on the others."""
    if pg.rank == 1:
        pg.abort("enough")
    return pg.rank != 1


def ones() -> Any:
    return np.ones(3)


async def test_closing_raises_what_nobody_awaited_and_closes_all_the_same() -> None:
    async def main(pg: ProcessGroup) -> None:
        if not ends(pg):
            return
        pg.all_reduce(ones(), async_op=True)
        pg.barrier(async_op=True)
        await pg.drain()
        gc.collect()  # the handles are gone; what became of them is not
        with pytest.raises(dist.GroupAborted, match=r"enough \(in all_reduce #1 of group") as caught:
            await pg.aclose()
        assert "nobody awaited" in caught.value.__notes__[0]
        assert "closed" in repr(pg)
        await pg.aclose()  # said once

    await run_cluster(2, main)


async def test_leaving_async_with_raises_it() -> None:
    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        if pg.rank == 1:
            group.abort("enough")
            await group.aclose()
            return
        with pytest.raises(dist.GroupAborted, match="enough"):
            async with group:
                group.all_reduce(ones(), async_op=True)
                await group.drain()

    await run_cluster(2, main)


async def test_an_exception_in_flight_says_enough() -> None:
    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        if pg.rank == 1:
            group.abort("enough")
            await group.aclose()
            return
        with pytest.raises(KeyError) as caught:
            async with group:
                group.all_reduce(ones(), async_op=True)
                await group.drain()
                raise KeyError("mine")
        assert not hasattr(caught.value, "__notes__")

    await run_cluster(2, main)


@pytest.mark.parametrize("how", ["await", "exception", "result", "callback", "wait"])
async def test_whoever_was_told_by_one_work_is_not_told_again(how: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        if not ends(pg):
            return
        first = pg.all_reduce(ones(), async_op=True)
        second = pg.all_reduce(ones(), async_op=True)
        seen: list[BaseException | None] = []
        if how == "callback":
            first.add_done_callback(lambda work: seen.append(work.exception()))
        waiting = asyncio.create_task(first.wait()) if how == "wait" else None
        await pg.drain()
        if how == "await":
            with pytest.raises(dist.GroupAborted):
                await first
        elif how == "result":
            with pytest.raises(dist.GroupAborted):
                first.result()
        elif how == "exception":
            assert isinstance(first.exception(), dist.GroupAborted)
        elif waiting is not None:
            with pytest.raises(dist.GroupAborted):
                await waiting
        await pg.aclose()
        assert how != "callback" or isinstance(seen[0], dist.GroupAborted)
        assert isinstance(second.exception(), dist.GroupAborted)  # results stay after the end

    await run_cluster(2, main)


async def test_a_callback_that_does_not_look_is_not_told() -> None:
    async def main(pg: ProcessGroup) -> None:
        if ends(pg):
            pg.all_reduce(ones(), async_op=True).add_done_callback(lambda work: None)
            await pg.drain()
            with pytest.raises(dist.GroupAborted):
                await pg.aclose()

    await run_cluster(2, main)


async def test_an_awaiter_that_is_woken_in_the_turn_of_closing_was_told() -> None:
    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        if pg.rank == 1:
            await group.aclose()
            return
        waiting = asyncio.create_task(group.recv(np.zeros(1), 1, async_op=True).wait())
        await asyncio.sleep(0)
        core_of(group).break_group(dist.GroupAborted(1, "enough"))  # the news comes in this very turn
        await group.aclose()
        with pytest.raises(dist.GroupAborted):
            await waiting

    await run_cluster(2, main)


async def test_who_aborts_knows() -> None:
    async def main(pg: ProcessGroup) -> None:
        pg.all_reduce(ones(), async_op=True)
        pg.abort("enough")
        await pg.aclose()
        assert "closed" in repr(pg)

    await run_cluster(2, main)


async def test_a_failure_of_another_group_is_raised_by_the_world_when_all_are_closed() -> None:
    async def main(pg: ProcessGroup) -> None:
        groups = [await pg.new_group() for _ in range(3)]
        middle = groups[1]
        assert middle is not None
        if not ends(middle):
            await pg.barrier()
            return
        middle.all_reduce(ones(), async_op=True)
        await middle.drain()
        await pg.barrier()
        with pytest.raises(dist.GroupAborted, match=f"group '{middle.name}'"):
            await pg.aclose()
        assert all("closed" in repr(group) for group in [pg, *groups])

    await run_cluster(2, main)


async def test_an_object_that_cannot_be_read_is_raised_and_the_steps_inside_tell_nobody() -> None:
    async def main(pg: ProcessGroup) -> None:
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, {1, 2}, allow_pickle=True)  # nothing wrong
        await pg.drain()
        pg.gather_object(slice(1) if pg.rank else 1, 0, allow_pickle=bool(pg.rank), async_op=True)
        await pg.drain()
        if pg.rank == 0:
            with pytest.raises(dist.AiodistError, match="pickle"):
                await pg.aclose()

    await run_cluster(2, main)


async def test_a_broken_group_with_objects_in_flight_is_raised() -> None:
    async def main(pg: ProcessGroup) -> None:
        if ends(pg):
            pg.all_gather_object("mine", async_op=True)
            with pytest.raises(dist.GroupAborted):
                await pg.aclose()

    await run_cluster(2, main)


async def test_a_failure_that_nobody_wants_hides_none_that_another_work_had() -> None:
    async def main(pg: ProcessGroup) -> None:
        if not ends(pg):
            return
        with pytest.raises(dist.GroupAborted):
            async with pg:
                unwanted = pg.all_reduce(ones(), async_op=True)
                pg.barrier(async_op=True)
                await pg.drain()
                unwanted._forget_failure()

    await run_cluster(2, main)
