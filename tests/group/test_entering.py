"""What makes a group is awaited, or entered without await."""

from __future__ import annotations

import asyncio

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster


async def test_a_new_group_is_entered_and_closed() -> None:
    async def main(pg: ProcessGroup) -> None:
        async with pg.new_group() as group, pg.split(0) as half:
            assert group is not None
            assert half is not None
            assert await group.all_reduce(1) == await half.all_reduce(1) == 2
        assert "closed" in repr(group)
        assert "closed" in repr(half)
        async with pg.new_group([0]) as first:
            assert (first is None) == (pg.rank == 1)
        assert await asyncio.create_task(pg.new_group([0, 1])) is not None

    await run_cluster(2, main)


async def test_the_world_is_entered_and_closed_and_told_of_errors() -> None:
    async with dist.init_process_group(world_size=1) as pg, dist.new_group() as group:
        assert isinstance(group, ProcessGroup)
    assert "closed" in repr(pg)
    with pytest.raises(ValueError, match="mine"):
        async with dist.init_process_group(world_size=1) as pg:
            raise ValueError("mine")
    assert "closed" in repr(pg)


async def test_who_sent_an_object_is_told() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            got = dict([await pg.recv_object_from(), await pg.recv_object_from(None)])
            assert got == {1: "from 1", 2: "from 2"}
            assert await pg.recv_object_from(2, tag=7) == (2, None)
        else:
            await pg.send_object(f"from {pg.rank}", 0)
            if pg.rank == 2:
                await pg.send_object(None, 0, tag=7)

    await run_cluster(3, main)


async def test_a_group_that_is_not_made_yet_says_what_to_write() -> None:
    made = dist.init_process_group(world_size=1)
    with pytest.raises(dist.UsageError, match=r"it has no 'all_reduce'\. Write `pg = await …`"):
        made.all_reduce  # noqa: B018
    assert not hasattr(made, "all_reduce")
    with pytest.raises(TypeError, match="entered by `async with`"), made:
        pass
    made.close()
