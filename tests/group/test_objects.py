"""Collectives of objects: one step where the frames hold all, two where they do not, alike on all ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.host.local.board import SLOTS
from aiodist.group import ProcessGroup
from aiodist.group.core import _not_prepared
from aiodist.net.wire.objects import encode
from aiodist.testing import run_cluster
from aiodist.transport import SocketEndpoint
from tests.helpers import core_of, error_of, needs_the_engine

Main = Callable[[ProcessGroup], Awaitable[Any]]


async def one_host(size: int, main: Main, timeout: float = 20.0) -> list[Any]:
    """Ranks that share memory."""
    loop = asyncio.get_running_loop()

    def endpoint(rank: int) -> SocketEndpoint:
        return SocketEndpoint(loop, rank, "job", b"", boot="here")

    return await run_cluster(size, main, endpoint=endpoint, timeout=timeout)


async def general(size: int, main: Main, timeout: float = 20.0) -> list[Any]:
    """Ranks that share memory, of which those of odd numbers start no prepared call."""

    async def limited(pg: ProcessGroup) -> Any:
        if pg.rank % 2:
            core_of(pg).start_prepared = _not_prepared
        return await main(pg)

    return await one_host(size, limited, timeout)


async def by_messages(size: int, main: Main, timeout: float = 20.0) -> list[Any]:
    """Ranks that share nothing."""
    return await run_cluster(size, main, timeout=timeout)


Cluster = Callable[..., Awaitable[list[Any]]]


@pytest.fixture(params=[one_host, general, by_messages])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Runs ranks that start their calls in different ways."""
    run: Cluster = request.param
    return run


def thing(rank: int, nbytes: int) -> bytes:
    """An object that no other rank has, of so many bytes on its way."""
    if nbytes < 40:
        return bytes([rank])
    made = bytes([rank + 1]) * (nbytes - len(encode(bytes(nbytes))) + nbytes)
    assert len(encode(made)) == nbytes
    return made


async def each_call(pg: ProcessGroup, nbytes: Callable[[int], int]) -> None:
    """Every collective, with an object of so many bytes of each rank."""
    things = [thing(rank, nbytes(rank)) for rank in range(pg.size)]
    mine, last = things[pg.rank], pg.size - 1
    assert await pg.broadcast_object(mine) == things[0]
    assert await pg.broadcast_object(mine, last) == things[last]
    assert await pg.all_gather_object(mine) == things
    assert await pg.gather_object(mine, last) == (things if pg.rank == last else None)
    assert await pg.scatter_object(things if pg.rank == last else None, last) == mine


EDGES = [30, 1015, 1016, 1017, 1100, 9000]


@pytest.mark.parametrize("nbytes", EDGES)
async def test_objects_arrive_whatever_a_frame_holds(nbytes: int, cluster: Cluster) -> None:
    """Also where the frames of some ranks hold all, and those of others do not."""

    async def main(pg: ProcessGroup) -> None:
        for small in range(-1, pg.size):
            await each_call(pg, lambda rank: 30 if rank == small else nbytes)  # noqa: B023 - called now
        assert await pg.all_gather_object(pg.rank + 5) == [5, 6, 7]

    await cluster(3, main)


async def test_frames_of_many_ranks_are_smaller() -> None:
    """Of 20 ranks each has 819 bytes, with its number."""

    async def main(pg: ProcessGroup) -> None:
        for nbytes in (811, 812):
            things = [thing(rank, nbytes if rank == 3 else 30) for rank in range(pg.size)]
            assert await pg.all_gather_object(things[pg.rank]) == things

    await one_host(20, main)


async def test_a_call_takes_two_numbers_on_all_ranks_and_is_one_call(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        numbers = core_of(pg).numbers
        for nbytes in (30, 9000):
            before = numbers.issued
            works = [
                pg.broadcast_object(thing(pg.rank, nbytes), 1, async_op=True),
                pg.gather_object(thing(pg.rank, nbytes), async_op=True),
            ]
            assert numbers.issued == before + 4
            assert [work.seq - works[0].seq for work in works] == [0, 1]
            assert [work.op for work in works] == ["broadcast_object", "gather_object"]
            for work in works:
                await work
            await pg.barrier()
            assert numbers.unbegun == set()

    await cluster(3, main)


async def test_what_is_issued_meanwhile_keeps_its_place(cluster: Cluster) -> None:
    """More operations than there are slots, of which some have a second step and some have none."""

    async def main(pg: ProcessGroup) -> None:
        works: list[Any] = []
        for step in range(SLOTS):
            works.append(pg.broadcast_object((pg.rank, step, bytes(step * 40)), step % 2, async_op=True))
            works.append(pg.all_reduce(np.array([pg.rank + step]), async_op=True))
        for step in reversed(range(SLOTS)):
            assert (await works[2 * step + 1]).tolist() == [1 + 2 * step]
            assert await works[2 * step] == (step % 2, step, bytes(step * 40))

    await cluster(2, main)


async def test_an_object_that_cannot_be_sent_takes_no_number(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        before = core_of(pg).numbers.issued
        calls: list[Callable[[], Any]] = [
            lambda: pg.all_gather_object(print),
            lambda: pg.gather_object(print),
            lambda: pg.broadcast_object(print, pg.rank),
            lambda: pg.scatter_object([1, print], pg.rank),
            lambda: pg.scatter_object([1], pg.rank),
            lambda: pg.broadcast_object(1, 7),
            lambda: pg.broadcast_object(1, timeout=-1),
        ]
        for call in calls:
            with pytest.raises(dist.UsageError):
                call()
        assert core_of(pg).numbers.issued == before
        await each_call(pg, lambda _: 30)

    await cluster(2, main)


@pytest.mark.parametrize("more", [0, 5000])
async def test_a_rank_that_cannot_decode_is_told_and_the_others_go_on(more: int, cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        objs = {"rank": pg.rank, "path": Path("here"), "more": bytes(more)}
        work = pg.all_gather_object(objs, allow_pickle=True)
        assert [one["rank"] for one in await work] == [0, 1]
        if pg.rank == 0:
            assert await pg.broadcast_object(objs, allow_pickle=True) is objs
        else:
            error = await error_of(pg.broadcast_object())
            assert isinstance(error, dist.UsageError) and "PosixPath" in str(error)
        told = pg.broadcast_object(objs, 1, allow_pickle=pg.rank == 1, async_op=True)
        assert await pg.all_gather_object(pg.rank) == [0, 1]
        if pg.rank == 0:
            assert isinstance(await error_of(told), dist.UsageError)
        else:
            assert await told is objs

    await cluster(2, main)


@pytest.mark.parametrize("nbytes", [30, 9000])
async def test_nobody_is_told_of_a_failure_but_who_closes_the_group(nbytes: int, cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        child = await pg.new_group()
        assert child is not None
        obj = {"path": Path("here"), "more": thing(pg.rank, nbytes)}
        child.broadcast_object(obj, allow_pickle=pg.rank == 0, async_op=True)
        await child.barrier()
        if pg.rank:
            with pytest.raises(dist.UsageError, match="pickled"):
                await child.aclose()
        else:
            await child.aclose()

    await cluster(2, main)


@pytest.mark.parametrize("nbytes", [30, 9000])
async def test_a_late_rank_is_awaited_and_callbacks_come_once(nbytes: int, cluster: Cluster) -> None:
    """The operation is in flight when it ends, and an await of it was cancelled before."""

    async def main(pg: ProcessGroup) -> None:
        told: list[Any] = []
        if pg.rank == 0:
            for _ in range(6):
                await asyncio.sleep(0.001)
        work = pg.broadcast_object(thing(pg.rank, nbytes), async_op=True)
        work.add_done_callback(lambda one: told.append(one.result()))
        assert f"{Path(__file__).name}" in str(work._line())
        if pg.rank:
            waiting = asyncio.ensure_future(work.wait())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert await work == await work == thing(0, nbytes)
        await pg.drain()
        await asyncio.sleep(0)
        assert told == [thing(0, nbytes)]
        assert core_of(pg).statistics()["operations"]["in_flight"] == 0

    await cluster(3, main)


@pytest.mark.parametrize("nbytes", [30, 9000])
async def test_a_rank_that_never_comes_is_a_timeout(nbytes: int, cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank == 0:
            work = pg.all_gather_object(thing(pg.rank, nbytes), timeout=0.05, async_op=True)
            error = await error_of(work)
            assert isinstance(error, dist.CollectiveTimeout)
            assert "all_gather_object" in str(error)
        while core_of(pg).error is None:  # noqa: ASYNC110 - nothing else tells who awaits nothing
            await asyncio.sleep(0.001)
        assert isinstance(await error_of(pg.barrier()), dist.GroupBroken)

    await cluster(2, main)


@pytest.mark.parametrize("nbytes", [30, 9000])
async def test_ranks_that_disagree_are_told_of_the_users_calls(nbytes: int, cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        obj = thing(pg.rank, nbytes)
        error = await error_of(pg.gather_object(obj, 1) if pg.rank else pg.all_gather_object(obj))
        assert isinstance(error, dist.CollectiveMismatch)
        assert "gather_object(dst=1)" in str(error) and "all_gather_object()" in str(error)

    await cluster(2, main)


async def test_what_a_frame_says_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative number is found by the step that would need the memory."""
    needs_the_engine()

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            monkeypatch.setattr("aiodist.group.objects._frame", lambda *_: np.full(1024, 255, np.uint8))
        work = pg.broadcast_object(7 if pg.rank == 0 else None, async_op=True)
        error = await error_of(work if pg.rank else pg.barrier())
        assert "has no memory for objects of -1 bytes" in str(error)

    await one_host(2, main)


async def test_a_task_may_begin_at_once() -> None:
    """As from Python 3.12 on, where the program says so: the steps know their numbers by then."""

    async def main(pg: ProcessGroup) -> None:
        core = core_of(pg)
        core.start_prepared = _not_prepared
        numbers: list[int] = []
        compose = core.compose

        def composed(first: Any, rest: Any, async_op: bool) -> Any:
            numbers.append(rest.func.__self__.number)
            return compose(first, rest, async_op)

        core.compose = composed  # type: ignore[method-assign]
        before = core.numbers.issued
        assert await pg.all_gather_object(pg.rank) == [0, 1]
        assert numbers == [before + 1]

    await one_host(2, main)


async def test_objects_in_a_group_of_one() -> None:
    async with await dist.init_process_group(world_size=1, rank=0) as pg:
        for nbytes in (30, 9000):
            await each_call(pg, lambda _: nbytes)  # noqa: B023 - called now
