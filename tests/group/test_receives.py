"""Receives wait as long as their sender takes, and end when nothing more can come."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster


def test_a_receive_has_no_deadline_of_its_own() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            await asyncio.sleep(10_000)
            await pg.send(np.arange(3.0), 0)
            await pg.send_object("late", 0)
        else:
            place = np.zeros(3)
            assert await pg.recv(place, 1) == 1
            assert list(place) == [0, 1, 2]
            assert await pg.recv_object() == "late"

    run_virtual(run_cluster(2, main, timeout=5))


def test_a_receive_has_the_deadline_that_it_is_given() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            with pytest.raises(dist.CollectiveTimeout, match="no completion within 2 s"):
                await pg.recv(np.zeros(3), 1, timeout=2)
        else:
            await asyncio.sleep(10)

    mine, theirs = run_virtual(run_cluster(2, main, timeout=5, return_exceptions=True))
    assert mine is None  # it has seen what it had to
    assert isinstance(theirs, dist.CollectiveTimeout | None)


@pytest.mark.parametrize("held", [False, True])
def test_a_rank_that_closes_ends_what_waits_for_it_and_nothing_else(held: bool) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            await pg.send_object("the last", 0)
            return
        if pg.rank == 0:
            assert await pg.recv_object(1) == "the last"
            with pytest.raises(dist.PeerClosed, match="rank 1 has closed its group") as caught:
                await pg.recv(np.zeros(3), 1, async_op=held)
            assert caught.value.ranks == (1,)
            with pytest.raises(dist.PeerClosed):  # also what is asked later
                await pg.recv_object(1)
            assert await pg.recv_object() == "alive"
            await pg.send_object("and so am I", 2)
        else:
            await asyncio.sleep(3)
            await pg.send_object("alive", 0)
            assert await pg.recv_object(0) == "and so am I"

    run_virtual(run_cluster(3, main))


def test_a_receive_from_anybody_ends_when_all_have_closed() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await asyncio.sleep(pg.rank)
            return
        began = asyncio.get_running_loop().time()
        with pytest.raises(dist.PeerClosed, match="ranks 1 and 2 have closed their groups") as caught:
            await pg.recv_object()
        assert caught.value.ranks == (1, 2)
        assert asyncio.get_running_loop().time() - began >= 2

    run_virtual(run_cluster(3, main))


def test_closing_ends_the_receives_that_tasks_wait_for_though_both_sides_do() -> None:
    async def main(pg: ProcessGroup) -> asyncio.Task[object]:
        task = asyncio.create_task(_serve(pg))
        await pg.barrier()
        return task

    async def _serve(pg: ProcessGroup) -> object:
        return await pg.recv_object(1 - pg.rank)

    async def whole() -> None:
        began = asyncio.get_running_loop().time()
        for task in await run_cluster(2, main, timeout=50):
            with pytest.raises(dist.GroupClosed, match=r"while this receive waited|has closed its group"):
                await task
        assert asyncio.get_running_loop().time() - began < 10

    run_virtual(whole())


def test_closing_waits_for_a_receive_that_is_held() -> None:
    async def main(pg: ProcessGroup) -> dist.Work[object] | None:
        if pg.rank:
            await asyncio.sleep(3)
            await pg.send_object("late", 0)
            return None
        return pg.recv_object(1, async_op=True)

    async def whole() -> None:
        work, _ = await run_cluster(2, main)
        assert work is not None and work.result() == "late"

    run_virtual(whole())


def test_closing_waits_no_longer_than_the_groups_timeout() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await asyncio.sleep(1000)
        else:
            pg.recv_object(1, async_op=True)
            await asyncio.sleep(700)  # it may wait for as long as it likes

    with pytest.raises(BaseExceptionGroup) as caught:
        run_virtual(run_cluster(2, main, timeout=30))
    assert caught.group_contains(dist.CollectiveTimeout, match="no completion within 30 s")


def test_a_rank_that_closes_one_group_ends_what_waits_for_it_there() -> None:
    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        if pg.rank == 1:
            await group.aclose()
            await asyncio.sleep(1000)
        else:
            with pytest.raises(dist.PeerClosed, match="rank 1 has closed its group"):
                await group.recv(np.zeros(3), 1)
            with pytest.raises(dist.PeerClosed):
                await group.recv_object()
        await pg.barrier(timeout=2000)

    run_virtual(run_cluster(2, main))


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_closing_right_after_a_receive_was_posted_is_bounded_too(turns: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await asyncio.sleep(1000)
            return
        held = pg.recv(np.zeros(3), 1, async_op=True)
        dropped = asyncio.ensure_future(asyncio.wait_for(pg.recv_object(1), 500))
        for _ in range(turns):
            await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        with pytest.raises(dist.CollectiveTimeout):
            await pg.aclose()
        assert held.done()
        assert asyncio.get_running_loop().time() - began < 31
        with pytest.raises(dist.GroupClosed):
            await dropped

    mine, _ = run_virtual(run_cluster(2, main, timeout=30, return_exceptions=True))
    assert mine is None  # it has seen what it had to


def test_a_receive_that_moves_up_compares_what_it_gets() -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank:
            await asyncio.sleep(1)
            await pg.send(np.arange(4, dtype=np.int32), 0)
            return
        task = asyncio.ensure_future(_of(pg.recv(np.zeros(4, np.int32), 1)))
        await asyncio.sleep(0)
        work = pg.recv(np.zeros(4, np.float32), 1, async_op=True)
        task.cancel()
        with pytest.raises(dist.CollectiveMismatch):
            await work

    results = run_virtual(run_cluster(2, main, return_exceptions=True))
    assert results[0] is None


async def _of(work: dist.Work[int]) -> int:
    return await work
