"""Groups that one member never makes: the others hear at once why, and wait for nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from tests.helpers import core_of, error_of


def make(pg: ProcessGroup, how: str) -> Any:
    return pg.split(7, key=-pg.rank) if how == "split" else pg.new_group(name="half")


@pytest.mark.parametrize("how", ["new_group", "split"])
def test_a_cancelled_call_is_told_to_those_who_made_the_group(how: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            making = asyncio.ensure_future(make(pg, how))
            await asyncio.sleep(0.1)
            making.cancel()
            await asyncio.wait([making])
            assert making.cancelled()
        else:
            await asyncio.sleep(1)
            group = await make(pg, how)
            began = asyncio.get_running_loop().time()
            error = await error_of(group.barrier())
            assert isinstance(error, dist.GroupAborted)
            assert error.rank == 1
            assert f"{how}() was cancelled" in str(error)
            assert asyncio.get_running_loop().time() - began < 1
            await group.aclose()
        await pg.barrier()  # this group is as it was
        assert len(await pg.all_gather_object(pg.rank)) == 3

    run_virtual(run_cluster(3, main))


@pytest.mark.parametrize("how", ["new_group", "split"])
def test_a_group_that_breaks_in_the_call_is_told_to_those_who_made_the_other(how: str) -> None:
    """Rank 0 has said its part when its group breaks. Rank 1 has not heard of that, and makes the other."""

    async def main(pg: ProcessGroup) -> None:
        half = await pg.new_group()
        assert half is not None
        if pg.rank == 0:
            call = make(half, how)
            core_of(half).break_group(dist.GroupAborted(0, "enough"), tell=False)
            assert isinstance(await error_of(call), dist.GroupAborted)
            await pg.barrier()
        else:
            await pg.barrier()
            began = asyncio.get_running_loop().time()
            group = await make(half, how)
            error = await error_of(group.barrier())
            assert isinstance(error, dist.GroupAborted)
            assert (error.rank, error.reason) == (0, "enough")
            assert asyncio.get_running_loop().time() - began < 1
        await pg.barrier()

    run_virtual(run_cluster(2, main))


def test_groups_of_several_colors_know_nothing_of_each_other() -> None:
    async def main(pg: ProcessGroup) -> None:
        color = None if pg.rank == 4 else pg.rank % 2
        group = await pg.split(color, key=-pg.rank)
        if color is None:
            assert group is None
        else:
            assert group is not None
            assert group.ranks == ((2, 0), (3, 1))[color]
            if color == 0:
                group.abort("enough")
            else:
                assert await group.all_gather_object(pg.rank) == [3, 1]
        await pg.barrier()

    run_virtual(run_cluster(5, main))
