"""Receives wait as long as their sender takes, and end when nothing more can come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup, watch
from aiodist.group.functional.point_to_point import irecv
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from aiodist.transport.memory import MemoryNetwork


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
            with pytest.raises(dist.CollectiveTimeout, match="the operation did not complete within 2 s"):
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


WAYS: list[Callable[[ProcessGroup], Any]] = [
    lambda pg: pg.recv(np.zeros(3), 1),
    lambda pg: pg.recv(np.zeros(3), 1, async_op=True),
    lambda pg: pg.recv(np.zeros(3), 1, async_op=True).wait(),
    lambda pg: pg.recv(np.zeros((3, 4)).T, 1, timeout=800),
    lambda pg: pg.recv(np.zeros(3), async_op=True),
    lambda pg: pg.recv_object(1, async_op=True),
    lambda pg: asyncio.shield(pg.recv_object_from(tag=3)),
    lambda pg: asyncio.wait_for(pg.recv_object(1), 800),
    lambda pg: irecv(np.zeros(3), src=1),
]


@pytest.mark.parametrize("turns", [0, 1, 5, None])
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_closing_ends_a_posted_receive_at_once(way: int, turns: int | None) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await asyncio.sleep(1000)
            return
        task = asyncio.ensure_future(_of(WAYS[way](pg)))
        for _ in range(turns or 0):
            await asyncio.sleep(0)
        if turns is None:
            await asyncio.sleep(700)  # it may wait for as long as it likes
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0)
        await pg.aclose()
        assert asyncio.get_running_loop().time() - began < 10
        with pytest.raises(dist.GroupClosed, match="group 'world' was closed here while this receive waited"):
            await task

    run_virtual(run_cluster(2, main, timeout=300))


@pytest.mark.parametrize("anybody", [False, True])
def test_closing_ends_receives_of_which_the_handle_is_kept_and_tells_who_asks(anybody: bool) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            works = [pg.recv_object(None if anybody else 1, async_op=True) for _ in range(3)]
            await pg.aclose()  # raises nothing: the program can ask
            for work in works:
                assert isinstance(work.exception(), dist.GroupClosed)
                with pytest.raises(dist.GroupClosed):
                    await work

    run_virtual(run_cluster(2, main))


def test_closing_tells_of_receives_that_it_ended_and_nobody_can_ask_for() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            pg.recv(np.zeros(3), 1, async_op=True)
            with pytest.raises(dist.GroupClosed, match="while this receive waited") as caught:
                await pg.aclose()
            assert "nobody awaited" in caught.value.__notes__[0]

    run_virtual(run_cluster(2, main))


def test_closing_waits_for_a_message_of_which_a_part_has_come() -> None:
    """It had been sent: neither GroupClosed nor PeerClosed comes in its place."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await pg.send(np.arange(500_000.0), 0)
            return
        place = np.zeros(500_000)
        work = pg.recv(place, 1, async_op=True)
        for _ in range(10_000):
            if place[:40_000].any():
                break
            await asyncio.sleep(0)
        assert place.any() and not work.done()
        await pg.aclose()
        assert work.result() == 1 and np.array_equal(place, np.arange(500_000.0))

    run_virtual(run_cluster(2, main))


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


async def _of(work: Awaitable[Any]) -> Any:
    return await work


def test_what_comes_slowly_from_a_member_that_has_sent_to_very_many_is_received(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its numbers do not fit into one message to all members: each gets its own. Here 5 are too many."""
    takes = {"now": 0.0}
    network = MemoryNetwork(delay=lambda *_: takes["now"])
    monkeypatch.setattr(watch, "COUNTED", 5)

    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        if group.rank == 2:
            takes["now"] = 40.0
            for number in range(3):
                for other in (0, 1, 3):
                    await group.send(np.full(4, 10 * other + number), other)
            takes["now"] = 0.0
        elif group.rank < 4:
            place = np.empty(4, int)
            for number in range(3):
                await group.recv(place, 2)
                assert (place == 10 * group.rank + number).all()
            with pytest.raises(dist.PeerClosed):
                await group.recv(place, 2)
        else:
            with pytest.raises(dist.PeerClosed):
                await group.recv(np.empty(4, int), 2)
        await group.aclose()
        await pg.barrier()

    run_virtual(run_cluster(5, main, network=network, timeout=600))


@pytest.mark.parametrize("way", ["one", "held", "anyone", "large", "objects"])
@pytest.mark.parametrize("whole", [False, True])
def test_what_comes_slowly_from_a_member_that_has_closed_is_received(way: str, whole: bool) -> None:
    """A network that brings a message every 40 seconds, and the news of the close at once. Where the world is
    closed it is every second: that does not wait long for its connections."""
    takes, seconds = {"now": 0.0}, 1.0 if whole else 40.0
    network = MemoryNetwork(delay=lambda *_: takes["now"])

    async def main(pg: ProcessGroup) -> None:
        group = pg if whole else await pg.new_group()
        assert group is not None
        if group.rank:
            for number in range(5):
                takes["now"] = seconds * (number + 1)
                if way == "objects":
                    await group.send_object(number, 0)
                else:
                    await group.send(np.full(20_000 if way == "large" else 1, number), 0, tag=number)
            takes["now"] = 0.0
        else:
            source = None if way == "anyone" else 1
            for number in range(5):
                if way == "objects":
                    assert await group.recv_object(1) == number
                    continue
                place = np.empty(20_000 if way == "large" else 1, int)
                assert await group.recv(place, source, tag=number, async_op=way == "held") == 1
                assert (place == number).all()
            with pytest.raises(dist.PeerClosed):
                await group.recv(np.empty(1, int), source)
        await group.aclose()
        if not whole:
            await pg.barrier()

    run_virtual(run_cluster(2, main, network=network, timeout=600))


@pytest.mark.parametrize("turns", range(7))
def test_what_fits_no_receive_counts_once(turns: int) -> None:
    """Else the last message of a member that closes is taken for one that has come: it was sent, and its
    receive failed. Here the receive that it does not fit is given up after so many turns of the loop."""
    takes = {"now": 0.0}
    network = MemoryNetwork(delay=lambda *_: takes["now"])

    async def deep(pg: ProcessGroup, depth: int) -> None:
        if depth == 0:
            await pg.recv(np.empty(3), 1)
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(deep(pg, depth - 1))

    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        if group.rank:
            await group.recv(np.empty(1), 0, tag=5)
            await group.send(np.arange(2.0), 0)
            takes["now"] = 40.0
            await group.send(np.full(4, 42), 0)
            takes["now"] = 0.0
        else:
            task = asyncio.create_task(deep(group, 2))
            await asyncio.sleep(0.05)
            await group.send(np.zeros(1), 1, tag=5)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            place: Any = np.empty(2)
            await group.recv(place, 1)
            assert np.array_equal(place, [0.0, 1.0])
            place = np.empty(4, int)
            assert await group.recv(place, 1) == 1
            assert (place == 42).all()
            with pytest.raises(dist.PeerClosed):
                await group.recv(np.empty(1, int), 1)
        await group.aclose()
        await pg.barrier()

    run_virtual(run_cluster(2, main, network=network, timeout=600))
