"""`coalesce`: what a block holds back, and that nothing which has a number is ever lost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.host.local.board import SLOTS
from aiodist.group import ProcessGroup
from aiodist.group.epochs.regroup import Regroup
from aiodist.testing import run_cluster
from aiodist.transport import SocketEndpoint
from tests.helpers import core_of

Main = Callable[[ProcessGroup], Awaitable[Any]]


async def one_host(size: int, main: Main, timeout: float = 20.0) -> list[Any]:
    """Ranks that share memory."""
    loop = asyncio.get_running_loop()

    def endpoint(rank: int) -> SocketEndpoint:
        return SocketEndpoint(loop, rank, "job", b"", boot="here")

    return await run_cluster(size, main, endpoint=endpoint, timeout=timeout)


async def by_messages(size: int, main: Main, timeout: float = 20.0) -> list[Any]:
    """Ranks that share nothing."""
    return await run_cluster(size, main, timeout=timeout)


@pytest.fixture(params=[one_host, by_messages])
def cluster(request: pytest.FixtureRequest) -> Callable[..., Awaitable[list[Any]]]:
    """Runs ranks on one host, and on several."""
    run: Callable[..., Awaitable[list[Any]]] = request.param
    return run


Cluster = Callable[..., Awaitable[list[Any]]]


def mine(pg: ProcessGroup, step: int = 0, count: int = 5) -> Any:
    """Values that no other rank, step or element has."""
    return np.arange(count) + 100 * step + 1000 * (pg.rank + 1)


def total(pg: ProcessGroup, step: int = 0, count: int = 5) -> Any:
    """Their sum over all ranks."""
    ranks = sum(range(1, pg.size + 1))
    return pg.size * (np.arange(count) + 100 * step) + 1000 * ranks


async def broken(pg: ProcessGroup) -> None:
    """Wait until the group has broken."""
    while core_of(pg).error is None:  # noqa: ASYNC110 - nothing else tells who may not await
        await asyncio.sleep(0.001)


async def check_works(pg: ProcessGroup, rounds: int = SLOTS + 6) -> None:
    """The group goes on, past the number whose slot a lost operation would keep."""
    for step in range(rounds):
        assert np.array_equal(await pg.all_reduce(mine(pg, step)), total(pg, step))


# ── who is in it ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_born_inside_is_not_in_the_batch(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        async def later() -> None:
            await left.wait()
            for step in range(3):
                assert np.array_equal(await pg.all_reduce(mine(pg, step)), total(pg, step))

        left = asyncio.Event()
        async with pg.coalesce():
            task = asyncio.create_task(later())
            held = pg.all_reduce(mine(pg, 7), async_op=True)
            await asyncio.sleep(0)
        assert np.array_equal(await held, total(pg, 7))
        left.set()
        await task
        await check_works(pg)

    await cluster(2, main)


async def test_what_a_task_born_inside_issues_in_it_starts_at_once(cluster: Cluster) -> None:
    """And what was held back before it: collectives begin in the order of their numbers."""

    async def main(pg: ProcessGroup) -> None:
        async def meanwhile() -> None:
            assert np.array_equal(await pg.all_reduce(mine(pg, 1)), total(pg, 1))
            assert await pg.all_gather_object(pg.rank) == list(range(pg.size))

        async with pg.coalesce():
            held = pg.all_reduce(mine(pg, 0), async_op=True)
            await asyncio.create_task(meanwhile())
            assert np.array_equal(await held, total(pg, 0))
            last = pg.all_reduce(mine(pg, 2), async_op=True)
            assert not last.done()
            with pytest.raises(dist.UsageError, match="Await it after the block"):
                await last
        assert np.array_equal(await last, total(pg, 2))

    await cluster(2, main)


async def test_a_timer_set_inside_is_not_in_the_batch(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        loop = asyncio.get_running_loop()
        started: asyncio.Future[Any] = loop.create_future()
        async with pg.coalesce():
            pg.all_reduce(mine(pg, 7))
            loop.call_later(0.02, lambda: started.set_result(pg.all_reduce(mine(pg), async_op=True)))
        work = await started
        assert np.array_equal(await work, total(pg))
        await check_works(pg)

    await cluster(2, main)


async def test_a_callback_set_inside_is_not_in_the_batch(cluster: Cluster) -> None:
    """Of a Work, and of a future."""

    async def main(pg: ProcessGroup) -> None:
        loop = asyncio.get_running_loop()
        started: list[dist.Work[Any]] = []
        future: asyncio.Future[None] = loop.create_future()
        both = asyncio.Event()

        def issue(_: object) -> None:
            started.append(pg.all_reduce(mine(pg, len(started)), async_op=True))
            if len(started) == 2:
                both.set()

        async with pg.coalesce():
            work = pg.all_reduce(mine(pg, 7), async_op=True)
            work.add_done_callback(issue)
            future.add_done_callback(issue)
        await work
        await asyncio.sleep(0)
        future.set_result(None)
        await both.wait()
        for step, other in enumerate(started):
            assert np.array_equal(await other, total(pg, step))
        await check_works(pg)

    await cluster(2, main)


async def test_a_coroutine_that_the_task_itself_awaits_is_in_the_batch() -> None:
    async def main(pg: ProcessGroup) -> None:
        async def issue() -> dist.Work[Any]:
            await asyncio.sleep(0)
            return pg.all_reduce(mine(pg), async_op=True)

        async with pg.coalesce():
            work = await issue()
            with pytest.raises(dist.UsageError, match="begins when the coalesce"):
                await work
        assert np.array_equal(await work, total(pg))

    await by_messages(2, main)


async def test_another_tasks_message_does_not_overtake_one_that_is_held_back(cluster: Cluster) -> None:
    """Receives of one tag take messages in the order of the calls, and sends number them so."""

    async def main(pg: ProcessGroup) -> None:
        peer = 1 - pg.rank

        async def meanwhile() -> Any:
            if pg.rank == 0:
                return await pg.send(mine(pg, 1), peer, tag=3)
            into = np.zeros(5, np.int64)
            await pg.recv(into, peer, tag=3)
            return into

        into = np.zeros(5, np.int64)
        async with pg.coalesce():
            if pg.rank == 0:
                pg.send(mine(pg, 0), peer, tag=3)
            else:
                pg.recv(into, peer, tag=3)
            free = pg.all_reduce(mine(pg), async_op=True)
            second = await asyncio.create_task(meanwhile())
            assert not free.done()
        if pg.rank == 1:
            assert into.tolist() == [1000, 1001, 1002, 1003, 1004]
            assert second.tolist() == [1100, 1101, 1102, 1103, 1104]
        await free

    await cluster(2, main)


# ── calls of several steps ───────────────────────────────────────────────────────────────────────────


async def test_objects_in_a_block_that_awaits(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        async with pg.coalesce():
            everyone = pg.all_gather_object({"rank": pg.rank})
            told = pg.broadcast_object(["a", pg.rank] if pg.rank == 1 else None, 1, async_op=True)
            await asyncio.sleep(0.01)
            rows = pg.gather_object(pg.rank * 10, async_op=True)
            part = pg.scatter_object([[i, "x"] for i in range(pg.size)] if pg.rank == 0 else None)
            await asyncio.sleep(0.01)
            assert not any(work.done() for work in (everyone, told, rows, part))
            for work in (everyone, told):
                with pytest.raises(dist.UsageError, match="Await it after the block"):
                    await work
        assert everyone.done() and part.done()  # leaving waits for what has no async_op
        assert await everyone == [{"rank": rank} for rank in range(pg.size)]
        assert await told == ["a", 1]
        assert await rows == ([0, 10] if pg.rank == 0 else None)
        assert await part == [pg.rank, "x"]
        await check_works(pg)

    await cluster(2, main)


async def test_messages_of_objects_in_a_block_that_awaits(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        peer = 1 - pg.rank
        async with pg.coalesce():
            pg.send_object({"from": pg.rank}, peer)
            await asyncio.sleep(0.01)
            thing = pg.recv_object(peer)
            anything = pg.recv_object(async_op=True)
            await asyncio.sleep(0.01)
            pg.send_object([pg.rank], peer)
        assert await thing == {"from": peer}
        assert await anything == [peer]

    await cluster(2, main)


async def test_torchs_lists_of_objects_in_a_block_that_awaits() -> None:
    async def main(pg: ProcessGroup) -> None:
        everyone: list[Any] = [None, None]
        told: list[Any] = [7, "b"] if pg.rank == 0 else [None, None]
        async with pg.coalesce():
            dist.all_gather_object(everyone, (pg.rank,), pg)
            await asyncio.sleep(0.01)
            dist.broadcast_object_list(told, 0, pg)
            await asyncio.sleep(0.01)
            assert everyone == [None, None]
        assert everyone == [(0,), (1,)]
        assert told == [7, "b"]

    await by_messages(2, main)


async def test_new_groups_in_a_block(cluster: Cluster) -> None:
    """They cannot be held back, so what was issued before them begins with them."""

    async def main(pg: ProcessGroup) -> None:
        async with pg.coalesce():
            first = pg.all_reduce(mine(pg), async_op=True)
            group = await pg.new_group()
            assert group is not None
            async with group.coalesce():
                inner = group.all_reduce(mine(pg, 2), async_op=True)
            assert np.array_equal(await inner, total(pg, 2))
            half = await pg.split(pg.rank)
            assert half is not None and half.size == 1
            later = pg.new_group(range(pg.size))
            local = await pg.new_group(use_local_synchronization=True)
            assert local is not None
            last = pg.all_reduce(mine(pg, 1), async_op=True)
            assert not last.done()
        assert np.array_equal(await first, total(pg))
        assert np.array_equal(await last, total(pg, 1))
        again = await later
        assert again is not None
        for made in (group, again, local):
            await check_works(made, 3)
        await check_works(pg)

    await cluster(2, main)


async def test_torchs_subgroups_in_a_block() -> None:
    async def main(pg: ProcessGroup) -> None:
        async with pg.coalesce():
            work = pg.all_reduce(mine(pg), async_op=True)
            here, everyone = await dist.new_subgroups(2)
            assert isinstance(here, ProcessGroup) and len(everyone) == 2
            parts = await dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
            assert isinstance(parts[0], ProcessGroup)
        assert np.array_equal(await work, total(pg))
        await check_works(here, 2)
        await check_works(parts[0], 2)

    await by_messages(4, main)


async def test_agree_and_pending_joins_in_a_block(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        async with pg.coalesce():
            work = pg.all_reduce(mine(pg), async_op=True)
            assert await pg.agree() is True
            assert await pg.agree(pg.rank == 0) is False
            assert await pg.pending_joins() == 0
            assert np.array_equal(await work, total(pg))
            pg.barrier()
        await check_works(pg)

    await cluster(2, main)


async def test_agree_in_a_task_born_inside(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        async with pg.coalesce():
            work = pg.all_reduce(mine(pg), async_op=True)
            agreed = asyncio.create_task(pg.agree())
            await asyncio.sleep(0)
        assert await agreed
        assert np.array_equal(await work, total(pg))
        await check_works(pg)

    await cluster(2, main)


async def test_another_task_issues_while_rank_0_asks_the_store_who_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`pending_joins` has its number before that."""

    async def main(pg: ProcessGroup) -> None:
        async def asked(_: Regroup) -> int:
            await issued[pg.rank].wait()
            return 3

        monkeypatch.setattr(Regroup, "count_newcomers", asked)
        waiting = asyncio.create_task(pg.pending_joins())
        await asyncio.sleep(0)
        work = pg.all_reduce(mine(pg), async_op=True)
        issued[pg.rank].set()
        assert await waiting == 3
        assert np.array_equal(await work, total(pg))

    issued = [asyncio.Event() for _ in range(2)]
    await by_messages(2, main)


@pytest.mark.parametrize("how", ["fails", "cancelled"])
async def test_a_store_that_cannot_be_asked_who_waits_hangs_nobody(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def asked(_: Regroup) -> int:
        if how == "fails":
            raise dist.RendezvousError("it is gone")
        await asyncio.Event().wait()
        raise AssertionError

    async def main(pg: ProcessGroup) -> None:
        if pg.rank or how == "fails":
            with pytest.raises(dist.RendezvousError, match=r"could not ask|is gone"):
                await pg.pending_joins()
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await pg.pending_joins()
        await check_works(pg)

    monkeypatch.setattr(Regroup, "count_newcomers", asked)
    await by_messages(2, main)


async def test_closing_waits_for_the_question_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 closes while it asks the store: it still tells the others."""

    async def main(pg: ProcessGroup) -> None:
        waiting = asyncio.create_task(pg.pending_joins(timeout=5))
        if pg.rank == 0:
            await asking.wait()
            closing = asyncio.create_task(pg.aclose())
            await asyncio.sleep(0)
            answer.set()
            await closing
        assert await waiting == 3

    async def asked(_: Regroup) -> int:
        asking.set()
        await answer.wait()
        return 3

    asking, answer = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(Regroup, "count_newcomers", asked)
    await by_messages(2, main)


async def test_break_ends_the_question_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(pg: ProcessGroup) -> None:
        waiting = asyncio.create_task(pg.pending_joins())
        if pg.rank == 0:
            await asking.wait()
            pg.abort("enough")
        with pytest.raises(dist.GroupAborted, match="enough"):
            await waiting

    async def asked(_: Regroup) -> int:
        asking.set()
        await asyncio.Event().wait()
        raise AssertionError

    asking = asyncio.Event()
    monkeypatch.setattr(Regroup, "count_newcomers", asked)
    await by_messages(2, main)


async def test_gradients_in_a_block() -> None:
    """Their averages cannot be had inside; they are not lost."""

    async def main(pg: ProcessGroup) -> None:
        weights = [np.zeros(3), np.zeros(4)]
        sync = await dist.GradientSync(pg, weights)
        async with pg.coalesce():
            for index, weight in enumerate(weights):
                sync.ready(index, np.full_like(weight, pg.rank + index))
            await asyncio.sleep(0)
            with pytest.raises(dist.UsageError, match="Await it after the block"):
                await sync.finish()
        averages = await sync.finish()
        assert [average[0] for average in averages] == [0.5, 1.5]
        await check_works(pg, 3)

    await by_messages(2, main)


async def test_a_cancelled_task_of_the_groups_own_breaks_the_group_and_leaves_nobody_waiting() -> None:
    """Whoever cancels all tasks of the loop cancels the second step of objects, too, which has its number."""

    async def main(pg: ProcessGroup) -> None:
        work = pg.all_gather_object([pg.rank] * 2000, async_op=True)
        if pg.rank == 1:
            for task in core_of(pg)._steps.pending():
                task.cancel()
        with pytest.raises(dist.GroupAborted, match="rank 1 aborted the group"):
            await work
        with pytest.raises(dist.GroupAborted):
            await pg.barrier()

    await by_messages(2, main)


# ── blocks in blocks ─────────────────────────────────────────────────────────────────────────────────


async def test_a_block_in_a_block_of_the_same_group_is_part_of_it(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        async with pg.coalesce():
            first = pg.all_reduce(mine(pg, 0), async_op=True)
            async with pg.coalesce():
                second = pg.all_reduce(mine(pg, 1))
            third = pg.all_reduce(mine(pg, 2), async_op=True)
            await asyncio.sleep(0.01)
            assert not any(work.done() for work in (first, second, third))
        assert second.done()
        for step, work in enumerate((first, second, third)):
            assert np.array_equal(await work, total(pg, step))

    await cluster(2, main)


async def test_blocks_of_two_groups_hold_back_their_own(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        other = await pg.new_group()
        assert other is not None
        async with pg.coalesce():
            first = pg.all_reduce(mine(pg, 0), async_op=True)
            async with other.coalesce():
                second = other.all_reduce(mine(pg, 1), async_op=True)
                third = pg.all_reduce(mine(pg, 2), async_op=True)
                await asyncio.sleep(0.01)
                assert not any(work.done() for work in (first, second, third))
            assert np.array_equal(await second, total(pg, 1))
            await asyncio.sleep(0.01)
            assert not first.done() and not third.done()
        assert np.array_equal(await first, total(pg, 0))
        assert np.array_equal(await third, total(pg, 2))

    await cluster(2, main)


async def test_blocks_of_two_tasks_on_one_group(cluster: Cluster) -> None:
    """Whichever is left first, what the other issued before begins with it."""

    async def main(pg: ProcessGroup) -> None:
        works: dict[int, dist.Work[Any]] = {}
        turn = [asyncio.Event() for _ in range(4)]

        async def one() -> None:
            async with pg.coalesce():
                works[0] = pg.all_reduce(mine(pg, 0), async_op=True)
                turn[0].set()
                await turn[1].wait()
                works[2] = pg.all_reduce(mine(pg, 2))
                turn[2].set()
                await turn[3].wait()
            for step in (0, 2):
                assert np.array_equal(await works[step], total(pg, step))

        async def two() -> None:
            await turn[0].wait()
            async with pg.coalesce():
                works[1] = pg.all_reduce(mine(pg, 1), async_op=True)
                turn[1].set()
                await turn[2].wait()
                works[3] = pg.all_reduce(mine(pg, 3), async_op=True)
            assert np.array_equal(await works[1], total(pg, 1))
            assert np.array_equal(await works[3], total(pg, 3))
            turn[3].set()

        await asyncio.gather(one(), two())
        await check_works(pg)

    await cluster(2, main)


async def test_a_batch_is_used_once() -> None:
    async def main(pg: ProcessGroup) -> None:
        batch = pg.coalesce()
        async with batch:
            pg.barrier()
        with pytest.raises(dist.UsageError, match="a batch is used once"):
            async with batch:
                pass

    await by_messages(1, main)


# ── how it ends ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_exception_inside_begins_what_was_issued(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        works: list[dist.Work[Any]] = []
        with pytest.raises(KeyError):
            async with pg.coalesce():
                works.append(pg.all_reduce(mine(pg)))
                things = pg.all_gather_object(pg.rank)
                await asyncio.sleep(0)
                raise KeyError
        assert np.array_equal(await works[0], total(pg))
        assert await things == [0, 1]
        await check_works(pg)

    await cluster(2, main)


async def test_a_cancelled_block_begins_what_was_issued(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        async def block() -> None:
            async with pg.coalesce():
                works.append(pg.all_reduce(mine(pg)))
                works.append(pg.all_gather_object(pg.rank))
                issued.set()
                await asyncio.Event().wait()

        works: list[dist.Work[Any]] = []
        issued = asyncio.Event()
        task = asyncio.create_task(block())
        await issued.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert np.array_equal(await works[0], total(pg))
        assert await works[1] == [0, 1]
        await check_works(pg)

    await cluster(2, main)


async def test_a_wait_that_is_cancelled_at_the_blocks_end_loses_nothing() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            await pg.recv(np.empty(1), 0)
        works: list[dist.Work[Any]] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01 if pg.rank == 0 else 0):
                async with pg.coalesce():
                    works.append(pg.all_reduce(mine(pg)))
                    works.append(pg.all_reduce(mine(pg, 1)))
                await asyncio.sleep(10)
        if pg.rank == 0:
            await pg.send(np.empty(1), 1)
        for step, work in enumerate(works):
            assert np.array_equal(await work, total(pg, step))
        del works, work
        gc.collect()

    await by_messages(2, main)


@pytest.mark.parametrize("here", [True, False], ids=["they are here", "they come"])
async def test_an_end_that_fails_takes_the_other_receives_back(cluster: Cluster, here: bool) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            if here:
                await pg.recv_object(1, tag=9)
            first, last = np.zeros(5, int), np.zeros(5, int)
            with pytest.raises(dist.UsageError, match="pickled"):
                async with pg.coalesce():
                    if here:  # else the block would wait for it
                        pg.recv(first, 1, tag=1)
                    pg.recv_object(1, tag=2)
                    pg.recv(last, 1, tag=3)
                    held = pg.recv_object(1, tag=4, async_op=True)
            first[...] = last[...] = 77
            await pg.send_object("go on", 1)
            assert await held == "held"
            again = [np.zeros(5, int), np.zeros(5, int)]
            for tag, into in zip((1, 3), again, strict=True):
                await pg.recv(into, 1, tag=tag)
            assert np.array_equal(again, [mine(pg, 1) + 1000, mine(pg, 3) + 1000])
            assert np.array_equal([first, last], np.full((2, 5), 77))
        else:
            await pg.send_object({1: print}, 0, tag=2, allow_pickle=True)
            sends = [pg.send(mine(pg, tag), 0, tag=tag, async_op=True) for tag in ((1, 3) if here else ())]
            await asyncio.sleep(0)
            if here:
                await pg.send_object("all have come", 0, tag=9)
            await pg.recv_object(0)
            await pg.send_object("held", 0, tag=4)
            for tag in () if here else (1, 3):
                await pg.send(mine(pg, tag), 0, tag=tag)
            for send in sends:
                await send
        await check_works(pg)

    await cluster(2, main)


@pytest.mark.parametrize("early", [True, False], ids=["begun before", "begun by the end"])
async def test_an_end_that_fails_takes_nothing_from_another_task(cluster: Cluster, early: bool) -> None:
    """What another task awaits, or has, is not taken back."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            for number in range(3):
                await pg.send_object(number, 0, tag=1)
            await pg.recv_object(0)
            await pg.send_object({1: print}, 0, tag=2, allow_pickle=True)
            return
        with pytest.raises(dist.UsageError, match="pickled"):
            async with pg.coalesce():
                works = [pg.recv_object(1, tag=1) for _ in range(2)]
                pg.recv_object(1, tag=2)
                if early:
                    core_of(pg).batches.begin()
                    other = asyncio.ensure_future(works[1])
                    await asyncio.sleep(0)
                else:
                    other = asyncio.create_task(takes(pg, works[1]))
        assert await other == 1
        assert await pg.recv_object(1, tag=1) == 0
        assert await pg.recv_object(1, tag=1) == 2

    async def takes(pg: ProcessGroup, work: dist.Work[Any]) -> Any:
        while work._held_back:  # noqa: ASYNC110 - nothing says that it has begun
            await asyncio.sleep(0)
        return await work

    async def go_on(pg: ProcessGroup) -> None:
        later = asyncio.get_running_loop().call_later(0.05, lambda: sends.append(pg.send_object("go on", 1)))
        try:
            await main(pg)
        finally:
            later.cancel()

    sends: list[dist.Work[Any]] = []
    await cluster(2, lambda pg: go_on(pg) if pg.rank == 0 else main(pg))
    for send in sends:
        await send


async def test_an_end_that_is_cancelled_leaves_what_another_task_awaits(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            await pg.recv_object(0)
            await pg.send_object("first", 0, tag=1)
            await pg.recv_object(0)
            for number in range(2):
                await pg.send_object(number, 0)
            return
        works: list[dist.Work[Any]] = []

        async def block() -> None:
            async with pg.coalesce():
                works.extend([pg.recv_object(1, tag=1), pg.recv_object(1)])

        task = asyncio.create_task(block())
        while not works or works[0]._held_back:  # noqa: ASYNC110 - to await it would be to hold it
            await asyncio.sleep(0)
        other = asyncio.ensure_future(works[1])
        await pg.send_object("go on", 1)
        while not works[0].done():  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0)
        for _ in range(5):  # now its end waits for the second
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await pg.send_object("go on", 1)
        assert [await other, await pg.recv_object(1)] == [0, 1]

    await cluster(2, main)


@pytest.mark.parametrize("what", ["collective", "objects", "message", "receive", "quantised"])
async def test_a_block_in_a_group_that_has_broken_raises(cluster: Cluster, what: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        if pg.rank == 1:
            group.abort("enough")
        else:
            await broken(group)
            calls: dict[str, Callable[[], Any]] = {
                "collective": lambda: group.all_reduce(mine(pg)),
                "objects": lambda: group.all_gather_object(pg.rank),
                "message": lambda: group.send(mine(pg), 1),
                "receive": lambda: group.recv(mine(pg), 1),
                "quantised": lambda: group.all_reduce_quantized(np.ones(4, np.float32)),
            }
            for _ in range(2):
                with pytest.raises(dist.GroupAborted, match="enough"):
                    async with group.coalesce():
                        calls[what]()
        await check_works(pg)

    await cluster(2, main)


@pytest.mark.parametrize("way", ["block", "gather", "task group"])
async def test_receives_of_several_sizes_that_are_given_up_together_fit_later(
    cluster: Cluster, way: str
) -> None:
    """No message goes from one to the next of them meanwhile: it would not fit."""

    async def main(pg: ProcessGroup) -> None:
        for turns in range(12):
            if pg.rank == 1:
                await pg.recv_object(0)
                for size in (3, 5):
                    await pg.send(np.arange(size) + turns, 0)
            else:
                task = asyncio.create_task(receive(pg))
                await asyncio.sleep(0)
                send = pg.send_object("now", 1, async_op=True)
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                await send
                for size in (3, 5)[len(got) :]:
                    await one(pg, size)
                for into in got:
                    assert np.array_equal(into, np.arange(len(into)) + turns)
                assert [len(into) for into in got] == [3, 5]
                got.clear()

    async def one(pg: ProcessGroup, size: int) -> None:
        into = np.zeros(size, int)
        await pg.recv(into, 1)
        got.append(into)

    async def receive(pg: ProcessGroup) -> None:
        if way == "block":
            places = [np.zeros(size, int) for size in (3, 5)]
            async with pg.coalesce():
                for place in places:
                    pg.recv(place, 1)
            got.extend(places)
        elif way == "gather":
            await asyncio.gather(one(pg, 3), one(pg, 5))
        else:
            async with asyncio.TaskGroup() as tasks:
                for size in (3, 5):
                    tasks.create_task(one(pg, size))

    got: list[Any] = []

    await cluster(2, main)


@pytest.mark.parametrize("way", ["wait in the block", "callback", "asked too early"])
async def test_a_receive_that_is_given_up_once_is_taken_back(way: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            await pg.recv_object(0)
            for number in range(2):
                await pg.send(mine(pg, number), 0)
            return
        into, other = np.full(5, -1), np.zeros(5, int)
        if way == "wait in the block":
            async with pg.coalesce():
                waiting = pg.recv(into, 1).wait(0.05)
        else:
            work = pg.recv(into, 1)
            if way == "callback":
                work.add_done_callback(lambda _: None)
            else:
                with pytest.raises(asyncio.InvalidStateError):
                    work.result()
            waiting = work.wait(0.05)
        with pytest.raises(TimeoutError):
            await waiting
        await pg.send_object("go on", 1)
        for number in range(2):
            await pg.recv(other, 1)
            assert np.array_equal(other, mine(pg, number) + 1000)
        assert np.array_equal(into, np.full(5, -1))

    await by_messages(2, main)


async def test_a_receive_that_a_callback_has_is_not_taken_back() -> None:
    async def main(pg: ProcessGroup) -> None:
        had: list[Any] = []
        await pg.send_object("first", 0)
        await pg.send_object("second", 0)
        work = pg.recv_object(0)
        work.add_done_callback(lambda work: had.append(work.result()))
        while not had:  # noqa: ASYNC110 - to await it would be to hold it
            await asyncio.sleep(0)
        task = asyncio.ensure_future(work)
        task.cancel()
        await asyncio.wait([task])
        assert [*had, await pg.recv_object(0)] == ["first", "second"]

    await by_messages(1, main)


async def test_a_block_waits_for_a_quantized_all_reduce(cluster: Cluster) -> None:
    """It begins at once, since it is made of many steps."""

    async def main(pg: ProcessGroup) -> None:
        data, small = np.full(600, pg.rank + 1, np.float32), mine(pg)
        if pg.rank == 1:
            await pg.recv_object(0)
        async with pg.coalesce():
            pg.all_reduce(small)
            pg.all_reduce_quantized(data)
            if pg.rank == 0:
                later = asyncio.create_task(go_on(pg))
        assert np.array_equal(data, np.full(600, 3)) and np.array_equal(small, total(pg))
        if pg.rank == 0:
            await later
        await check_works(pg)

    async def go_on(pg: ProcessGroup) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        await pg.send_object("go on", 1)

    await cluster(2, main)


async def test_a_block_waits_for_what_has_a_callback(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        ended: list[dist.Work[Any]] = []
        if pg.rank == 1:
            await pg.recv_object(0)
        into, data = np.zeros(5, int), mine(pg)
        async with pg.coalesce():
            for work in (pg.all_reduce(data), *([pg.recv(into, 1)] if pg.rank == 0 else ())):
                work.add_done_callback(ended.append)
            if pg.rank == 0:
                later = asyncio.create_task(tell())
        if pg.rank == 0:
            await later
            assert np.array_equal(into, mine(pg, 7) + 1000)
        else:
            await pg.send(mine(pg, 7), 0)
        assert np.array_equal(data, total(pg))
        await check_works(pg)
        assert len(ended) == 2 - pg.rank

    async def tell() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        await groups[0].send_object("go on", 1)

    groups: list[ProcessGroup] = []

    async def first(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            groups.append(pg)
        await main(pg)

    await cluster(2, first)


async def test_a_block_whose_operations_fail_raises_the_first_and_warns_of_none() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            pg.abort("enough")
            return
        with pytest.raises(dist.GroupAborted, match="enough"):
            async with pg.coalesce():
                pg.all_reduce(mine(pg))
                pg.all_gather_object(pg.rank)
                pg.barrier()
                await broken(pg)
        gc.collect()  # a Work that was never awaited would warn, which is an error here

    await by_messages(2, main)


@pytest.mark.parametrize("inside", [True, False])
async def test_closing_begins_what_is_held_back(cluster: Cluster, inside: bool) -> None:
    """By whomever, also by the task whose block it is: peers count on it."""

    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        works: list[dist.Work[Any]] = []
        issued, closed = asyncio.Event(), asyncio.Event()

        async def block() -> None:
            async with group.coalesce():
                works.append(group.all_reduce(mine(group), async_op=True))
                works.append(group.all_gather_object(group.rank))
                issued.set()
                if inside:
                    await group.aclose()
                await closed.wait()
                with pytest.raises(dist.GroupClosed):
                    group.barrier()

        task = asyncio.create_task(block())
        await issued.wait()
        await group.aclose()
        assert np.array_equal(works[0].result(), total(pg))
        assert works[1].result() == [0, 1]
        closed.set()
        await task

    await cluster(2, main)


async def test_draining_in_a_block_is_refused_and_outside_waits_for_no_block(cluster: Cluster) -> None:
    async def main(pg: ProcessGroup) -> None:
        async with pg.coalesce():
            await pg.drain()
            things = pg.all_gather_object(pg.rank)
            with pytest.raises(dist.UsageError, match="Leave the block first"):
                await pg.drain()
            await asyncio.create_task(pg.drain())
            assert not things.done()
        assert await things == [0, 1]

    await cluster(2, main)


async def test_rebuilding_begins_what_is_held_back() -> None:
    async def main(pg: ProcessGroup) -> None:
        async with pg.coalesce():
            work = pg.all_reduce(mine(pg), async_op=True)
            things = pg.all_gather_object(pg.rank)
            new = await pg.rebuild()
        assert np.array_equal(await work, total(pg))
        assert await things == [0, 1]
        await check_works(new, 3)

    await by_messages(2, main)


# ── what others are told ─────────────────────────────────────────────────────────────────────────────


async def test_who_holds_an_operation_back_has_not_arrived() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            async with pg.coalesce():
                work = pg.all_reduce(mine(pg), async_op=True)
                await broken(pg)
        else:
            work = pg.all_reduce(mine(pg), timeout=0.5)
        told = "of waiting for rank 1, this process" if pg.rank else "rank 1 had not arrived"
        with pytest.raises(dist.CollectiveTimeout, match=told) as caught:
            await work
        assert caught.value.missing == (1,)

    await by_messages(2, main)


async def test_what_is_held_back_is_not_written_down_as_issued(cluster: Callable[..., Any]) -> None:
    async def main(pg: ProcessGroup) -> list[int]:
        def written() -> int:
            return sum(entry[1] == work.seq for entry in core_of(pg).recorder.kept)

        async with pg.coalesce():
            work = pg.all_reduce(np.ones(3), async_op=True)
            held = written()
        return [held, written()]

    assert await cluster(2, main) == [[0, 1]] * 2
