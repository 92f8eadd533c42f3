"""Groups that one member never makes: the others hear at once why, and wait for nobody."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.default import set_default
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


async def cancel_before_its_first_step(make_it: Callable[[], Any]) -> None:
    making = asyncio.ensure_future(make_it())
    making.cancel()
    await asyncio.wait([making])
    assert making.cancelled()


async def wait_for_no_time(make_it: Callable[[], Any]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(make_it(), 0)


async def close(make_it: Callable[[], Any]) -> None:
    make_it().close()


async def drop(make_it: Callable[[], Any]) -> None:
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        make_it()
        gc.collect(0)


async def drop_what_waits(make_it: Callable[[], Any]) -> None:
    waits = make_it().__await__()
    next(waits)
    waits.close()


WAYS = [cancel_before_its_first_step, wait_for_no_time, close, drop, drop_what_waits]


def as_default(pg: ProcessGroup) -> Any:
    set_default(pg)
    try:
        return dist.new_group()
    finally:
        set_default(None)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("how", ["new_group", "split", "dist.new_group"])
def test_a_call_that_is_given_up_unbegun_is_told_to_those_who_made_the_group(
    how: str, way: Callable[[Callable[[], Any]], Any]
) -> None:
    """Also to one that only receives in the group, which has no limit."""

    async def main(pg: ProcessGroup) -> None:
        mine = partial(as_default, pg) if how == "dist.new_group" else partial(make, pg, how)
        if pg.rank == 1:
            await way(mine)
        else:
            group = await mine()
            error = await error_of(group.recv(np.empty(1), group.ranks.index(1)))
            assert isinstance(error, dist.GroupAborted)
            assert error.rank == 1
            assert f"{how.removeprefix('dist.')}() was cancelled" in str(error)
            await group.aclose()
        assert await pg.all_gather_object(pg.rank) == [0, 1, 2]  # this group is as it was

    run_virtual(run_cluster(3, main))


@pytest.mark.parametrize("way", WAYS[:4], ids=lambda way: way.__name__)
def test_a_group_of_those_who_meet_alone_is_left_by_one_that_gives_up_unbegun(
    way: Callable[[Callable[[], Any]], Any],
) -> None:
    async def main(pg: ProcessGroup) -> None:
        mine = partial(pg.new_group, [0, 1], use_local_synchronization=True)
        if pg.rank == 1:
            await way(mine)
        elif pg.rank == 0:
            group = await mine()
            assert group is not None
            assert isinstance(await error_of(group.recv(np.empty(1), 1)), dist.PeerClosed)
            await group.aclose()
        await pg.barrier()

    run_virtual(run_cluster(3, main))


def test_of_several_groups_those_that_come_behind_a_cancelled_one_are_given_up_too() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 3:
            making = asyncio.ensure_future(dist.new_subgroups(2, pg))
            await asyncio.sleep(0.1)
            making.cancel()
            await asyncio.wait([making])
            assert making.cancelled()
        else:
            await asyncio.sleep(1)
            mine, _ = await dist.new_subgroups(2, pg)
            assert isinstance(mine, ProcessGroup)
            if pg.rank == 2:
                assert isinstance(await error_of(mine.recv(np.empty(1), 1)), dist.GroupAborted)
            else:
                assert await mine.all_reduce(pg.rank) == 1
            await mine.aclose()
        await pg.barrier()

    run_virtual(run_cluster(4, main))


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
