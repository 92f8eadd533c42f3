"""How the engine uses its library: order, threads, what is stopped and given back. No result is NCCL's."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.nccl import communicators, device, engine, lane
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from tests.backends.cuda.stand_in import Tensor
from tests.backends.nccl.stand_in import World
from tests.gpu.tensors import passed_by_all

BACKEND = "cpu:host,cuda:nccl"
F32 = np.float32


async def reduced(pg: ProcessGroup, count: int = 4) -> None:
    """One all_reduce, checked."""
    tensor = Tensor(np.arange(count, dtype=F32) * (pg.rank + 1))
    assert await pg.all_reduce(tensor) is tensor
    assert np.array_equal(tensor.array, np.arange(count) * sum(range(1, pg.size + 1)))


def destroyed(world: World) -> int:
    """How many communicators were given back, once all are."""
    for thread in list(communicators._destroying):
        thread.join(30)
    return world.log.count("destroy")


async def test_contiguous_and_strided_tensors_and_what_is_left_afterwards(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        await reduced(pg)
        whole = np.arange(12, dtype=F32).reshape(3, 4) + 100 * pg.rank
        expected = whole[:, ::2] * 3 + 300 - 300 * pg.rank
        await pg.all_reduce(Tensor(whole[:, ::2]))
        assert np.array_equal(whole[:, ::2], expected)
        assert np.array_equal(whole[:, 1::2], np.arange(12).reshape(3, 4)[:, 1::2] + 100 * pg.rank)

    await run_cluster(3, main, backend=BACKEND)
    assert destroyed(world) == 3
    assert world.log == ["group 1"] * 6 + ["destroy"] * 3


async def test_batch_is_one_group(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        tensors = [Tensor(np.arange(3, dtype=F32) + pg.rank + i) for i in range(5)]
        async with pg.coalesce():
            for tensor in tensors:
                pg.all_reduce(tensor)
        for i, tensor in enumerate(tensors):
            assert np.array_equal(tensor.array, np.arange(3) * 2 + 1 + 2 * i)

    await run_cluster(2, main, backend=BACKEND)
    assert world.log[:2] == ["group 5"] * 2


async def test_operation_waits_for_its_caller_and_streams_for_the_operation(world: World) -> None:
    """The host waits for none of it."""

    async def main(pg: ProcessGroup) -> None:
        tensor, out = Tensor(np.zeros(3, F32)), Tensor(np.zeros(3, F32))
        free = threading.Event()
        world.callers.give(free.wait)
        world.callers.give(lambda: tensor.array.fill(5))  # what the caller computes
        work = pg.all_reduce(tensor, out=out, async_op=True)
        other = world.modules["cupy.cuda"].Stream()
        with other:
            work.synchronize()
        seen: list[Any] = []
        other.give(lambda: seen.append(out.array.copy()))
        await asyncio.sleep(0)
        assert not work.done() and seen == []
        free.set()
        assert await work is out
        other.synchronize()
        assert np.array_equal(seen, [[5, 5, 5]])

    await run_cluster(1, main, backend=BACKEND)


async def test_operation_in_a_batch_waits_for_the_stream_of_its_call(world: World) -> None:
    """Not for the one that is current when the block ends; so do messages."""

    async def main(pg: ProcessGroup) -> None:
        await reduced(pg)
        tensor, out, sent = (Tensor(np.zeros(3, F32)) for _ in range(3))
        side, free = world.modules["cupy.cuda"].Stream(), threading.Event()
        side.give(free.wait)
        for given in (tensor, sent):
            side.give(partial(given.array.fill, 5))  # what the caller computes
        async with pg.coalesce():
            with side:
                work = pg.all_reduce(tensor, out=out, async_op=True)
                with pytest.raises(dist.UsageError, match="begins when the coalesce"):
                    work.synchronize()
        into = Tensor(np.zeros(3, F32))
        message: Any
        async with pg.coalesce():
            with side:
                if pg.rank == 0:
                    message = pg.send(sent, 1, async_op=True)
            if pg.rank == 1:
                message = pg.recv(into, 0, async_op=True)
        work.synchronize(side)  # it is launched
        free.set()
        assert (await work).array.tolist() == [10, 10, 10]
        await message
        assert pg.rank == 0 or into.array.tolist() == [5, 5, 5]

    await run_cluster(2, main, backend=BACKEND)


async def test_message_is_not_held_up_by_a_collective_that_the_receiver_issues_later(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        tensor = Tensor(np.ones(3, F32))
        if pg.rank == 0:
            first = pg.all_reduce(tensor, async_op=True)  # the launch waits for the other rank
            await pg.send(Tensor(np.arange(5)), 1)
            await first
        else:
            into = Tensor(np.zeros(5, np.int64))
            assert await pg.recv(into, None) == 0
            assert np.array_equal(into.array, np.arange(5))
            await pg.all_reduce(tensor)
        assert np.array_equal(tensor.array, [2, 2, 2])

    await run_cluster(2, main, backend=BACKEND)


async def test_message_that_is_not_launched_yet_is_not_waited_for(world: World) -> None:
    """Its launch takes turns of the loop, which would not come."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            work = pg.send(Tensor(np.arange(5)), 1, async_op=True)
            with pytest.raises(dist.UsageError, match="not launched yet"):
                work.synchronize()
            await pg.barrier()
            await work
        else:
            await pg.barrier()
            await pg.recv(Tensor(np.zeros(5, np.int64)), 0)

    await run_cluster(2, main, backend=BACKEND)


async def test_a_message_to_oneself_is_copied_on_a_lane_of_its_own(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        me, rows = pg.rank, Tensor(np.zeros((5, 2), np.int64))
        for count in (5, 3, 0):
            into = Tensor(np.zeros(count, np.int64))
            receive = pg.recv(into, None, tag=1, async_op=True)
            other = pg.send(Tensor(np.arange(count) + 90), me, async_op=True)
            await pg.send(Tensor(np.arange(count) + me), me, tag=1)
            assert await receive == me
            assert into.array.tolist() == list(range(me, me + count))
            assert await pg.recv(into, me) == me
            assert into.array.tolist() == list(range(90, 90 + count))
            await other
        strided = Tensor(rows.array[:, 1])
        sent = pg.send(Tensor(np.arange(10)[::2]), me, async_op=True)
        await pg.recv(strided, me)
        await sent
        assert rows.array.tolist() == [[0, 0], [0, 2], [0, 4], [0, 6], [0, 8]]

    await run_cluster(2, main, backend=BACKEND)
    assert destroyed(world) == 2 + 2  # one lane more on each rank


async def test_scalars_on_the_device_and_on_the_host(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        one = Tensor(np.asarray(pg.rank + 1, F32))
        assert await pg.all_reduce(one) is one
        assert one.array.tolist() == 3
        assert (await pg.all_gather(Tensor(np.asarray(pg.rank, F32)))).array.tolist() == [0, 1]
        assert await pg.all_reduce(pg.rank + 0.5) == 2
        got = await pg.broadcast(np.float32(pg.rank + 7), 1)
        assert type(got) is np.float32 and got == 8
        frozen = np.arange(3) + pg.rank
        frozen.flags.writeable = False
        assert (await pg.all_reduce(frozen)).tolist() == [1, 3, 5]
        assert frozen.tolist() == [pg.rank, pg.rank + 1, pg.rank + 2]

    await run_cluster(2, main, backend=BACKEND)


async def test_one_queue_of_the_device_is_warned_of_at_the_first_message(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine.warn_of_one_queue.cache_clear()
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")

    async def main(pg: ProcessGroup) -> None:
        await reduced(pg)
        assert "MAX_CONNECTIONS" not in caplog.text
        await pg.barrier()
        word = Tensor(np.arange(3) * (pg.rank + 1))
        await (pg.recv(word, 0) if pg.rank else pg.send(word, 1))

    await run_cluster(2, main, backend=BACKEND)
    engine.warn_of_one_queue.cache_clear()
    assert caplog.text.count("CUDA_DEVICE_MAX_CONNECTIONS=1") == 1


async def test_messages_both_ways_at_once(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        peer = 1 - pg.rank
        sent = [
            pg.send(Tensor(np.arange(4) + 10 * i + pg.rank), peer, tag=i, async_op=True) for i in range(4)
        ]
        for tag in (2, 0, 3, 1):
            into = Tensor(np.zeros(4, np.int64))
            await pg.recv(into, peer, tag=tag)
            assert np.array_equal(into.array, np.arange(4) + 10 * tag + peer)
        await asyncio.gather(*sent)

    await run_cluster(2, main, backend=BACKEND)
    assert destroyed(world) == 2 + 4  # a lane a direction, on both ranks


async def test_collectives_are_connected_when_the_group_opens(world: World) -> None:
    """Nobody's launch waits for another rank's: the device's lock is held meanwhile."""
    launched = asyncio.Event()

    async def main(pg: ProcessGroup) -> None:
        tensor = Tensor(np.ones(3, F32))
        stream = world.modules["cupy.cuda"].Stream()
        if pg.rank == 0:
            work = pg.all_reduce(tensor, async_op=True)
            work.synchronize(stream)  # returns when it is launched, and the other has not come
            launched.set()
            await work
        else:
            await launched.wait()
            await pg.all_reduce(tensor)
        assert tensor.array.tolist() == [2, 2, 2]

    await run_cluster(2, main, backend=BACKEND)


async def test_one_thread_at_a_time_gives_a_device_work(world: World) -> None:
    """A launch of rank 0 takes as long as there is hope that a message comes in between."""
    between = threading.Event()
    slow: list[Any] = []

    async def main(pg: ProcessGroup) -> None:
        into = Tensor(np.zeros(5, np.int64))
        send, recv = partial(pg.send, Tensor(np.arange(5)), 1), partial(pg.recv, into, 0)
        await (recv() if pg.rank else send())  # connects
        await pg.barrier()
        if pg.rank == 0:
            slow[:] = [made for made in world.communicators[:2] if made.rank == 0]  # the group's
        work = pg.all_reduce(Tensor(np.ones(3, F32)), async_op=True)
        await (recv() if pg.rank else send())
        await work
        assert pg.rank == 0 or np.array_equal(into.array, np.arange(5))

    def launching(communicators: list[Any]) -> None:
        if communicators == slow:
            between.wait(0.3)
        elif slow and communicators[0].rank == 0:
            between.set()

    world.launching = launching
    await run_cluster(2, main, backend=BACKEND)
    assert between.is_set()  # it came, after the launch


async def test_first_exchange_of_a_group_holds_up_no_message(world: World) -> None:
    """It connects, which waits for all members: without the device's lock."""

    async def main(pg: ProcessGroup) -> None:
        sent, got = Tensor(np.arange(6.0) + 10 * pg.rank), Tensor(np.zeros(6))
        exchange = partial(pg.all_to_all, sent, got)
        if pg.rank == 0:
            work = exchange(async_op=True)
            await pg.send(Tensor(np.arange(5)), 1)
            await work
        else:
            into = Tensor(np.zeros(5, np.int64))
            await pg.recv(into, 0)
            await exchange()
        await exchange()
        expected = [np.arange(3) + 3 * pg.rank + 10 * source for source in range(2)]
        assert np.array_equal(got.array, np.concatenate(expected))

    await run_cluster(2, main, backend=BACKEND)
    groups = [line for line in world.log if line.startswith("group")]
    # A byte each way, then a send and a receive of each member; a message each is a group of one.
    assert sorted(groups) == ["group 1"] * 2 + ["group 2"] * 2 + ["group 4"] * 4


async def test_ranks_that_batch_otherwise_are_told(world: World) -> None:
    """NCCL takes a batch for one operation: it would hang, or give wrong sums."""

    async def main(pg: ProcessGroup) -> None:
        tensors = [Tensor(np.ones(3, F32)) for _ in range(2)]
        with pytest.raises(dist.CollectiveMismatch) as caught:
            if pg.rank == 0:
                async with pg.coalesce():
                    works = [pg.all_reduce(tensor, async_op=True) for tensor in tensors]
            else:
                works = [pg.all_reduce(tensor, async_op=True) for tensor in tensors]
            for work in works:
                await work
        assert caught.value.said == {
            0: "all_reduce(float32[3], SUM, nccl), in one batch with the one before",
            1: "all_reduce(float32[3], SUM, nccl)",
        }

    await run_cluster(2, main, backend=BACKEND)


@pytest.mark.parametrize(("world", "splits"), [(True, 4), (False, 0)], indirect=["world"])
async def test_groups_that_ranks_await_in_different_orders_while_others_reduce(
    world: World, splits: int
) -> None:
    async def main(pg: ProcessGroup) -> None:
        first = pg.all_reduce(Tensor(np.ones(3, F32)), async_op=True)
        one, other = pg.new_group([0, 1]), pg.new_group([0, 2])
        between = pg.all_reduce(Tensor(np.ones(3, F32)), async_op=True)
        if pg.rank == 0:
            await between
            groups = [await one, await other]
        else:
            second, late = await other, await one
            groups = [late, second]
            await between
        await first
        for group in groups:
            if group is not None:
                await reduced(group)
                await group.aclose()

    await run_cluster(3, main, backend=BACKEND)
    assert world.log.count("split") == splits
    assert destroyed(world) == 3 + 4


async def test_group_that_nobody_awaits_leaves_nothing_behind(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        never = pg.new_group([0, 1])
        await reduced(pg)
        never.close()

    await run_cluster(2, main, backend=BACKEND)
    assert world.log.count("split") == 2
    assert destroyed(world) == 4


async def test_abort_ends_what_is_under_way_and_the_other_groups_of_the_device(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        other = await pg.new_group()
        assert other is not None
        await reduced(pg)
        await reduced(other)
        await passed_by_all(pg)
        if pg.rank == 0:
            work = pg.all_reduce(Tensor(np.ones(3, F32)), async_op=True)  # alone
            await asyncio.sleep(0)
            pg.abort("enough")
            with pytest.raises(dist.GroupAborted, match="enough"):
                await work
            with pytest.raises(dist.GroupAborted, match="enough"):
                work.synchronize()
        with pytest.raises(dist.GroupAborted, match="enough"):
            await pg.recv(np.zeros(1), 1 - pg.rank)  # never comes
        with pytest.raises(dist.GroupBroken, match="another group there broke"):
            await other.all_reduce(Tensor(np.ones(3, F32)))

    await run_cluster(2, main, backend=BACKEND)
    assert sorted(world.log[-4:]) == ["abort"] * 4
    assert device._never_freed == []
    for stream in world.streams.values():
        stream.synchronize()


async def test_call_that_nccl_refuses_breaks_the_group_with_its_words(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        await reduced(pg)
        await passed_by_all(pg)
        if pg.rank == 0:
            world.refused = RuntimeError("NCCL_ERROR_INVALID_USAGE")
        work = pg.all_reduce(Tensor(np.ones(3, F32)), async_op=True)
        with pytest.raises(dist.GroupBroken, match="NCCL_ERROR_INVALID_USAGE"):
            await work

    await run_cluster(2, main, backend=BACKEND)
    assert "destroy" not in world.log


async def test_ranks_that_nccl_cannot_connect_are_told_why(world: World) -> None:
    world.refused = RuntimeError("NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected")

    async def main(pg: ProcessGroup) -> None:
        raise AssertionError("there is no group")

    outcomes: list[Any] = await run_cluster(2, main, backend=BACKEND, return_exceptions=True)
    assert all(isinstance(outcome, dist.GroupBroken) for outcome in outcomes), outcomes
    assert any("NCCL could not connect rank" in str(o) and "Duplicate GPU" in str(o) for o in outcomes)


async def test_blocks_that_ranks_leave_in_different_orders_are_batches_of_their_own(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        async def block(inside: asyncio.Event, leave: asyncio.Event) -> None:
            async with pg.coalesce():
                for _ in range(2):
                    pg.all_reduce(Tensor(np.ones(3, F32)))
                inside.set()
                await leave.wait()

        events = [(asyncio.Event(), asyncio.Event()) for _ in range(2)]
        tasks = []
        for inside, leave in events:
            tasks.append(asyncio.create_task(block(inside, leave)))
            await inside.wait()
        for number in (0, 1) if pg.rank else (1, 0):
            events[number][1].set()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    await run_cluster(2, main, backend=BACKEND)
    assert world.log[:4] == ["group 2"] * 4


async def test_error_is_heard_of_while_the_kernel_waits(world: World) -> None:
    """The other rank never comes, and NCCL knows why."""

    async def main(pg: ProcessGroup) -> None:
        await reduced(pg)
        await passed_by_all(pg)
        if pg.rank == 0:
            work = pg.all_reduce(Tensor(np.ones(3, F32)), async_op=True)
            work.synchronize(world.modules["cupy.cuda"].Stream())
            for communicator in world.communicators:
                communicator.sick = RuntimeError("NCCL_ERROR_REMOTE_ERROR")
            with pytest.raises(dist.GroupBroken, match="NCCL_ERROR_REMOTE_ERROR"):
                await work
        else:
            with pytest.raises(dist.GroupBroken, match="NCCL_ERROR_REMOTE_ERROR"):
                await pg.recv(np.zeros(1), 0)  # never comes

    await run_cluster(2, main, backend=BACKEND, timeout=30)


async def test_communicator_is_destroyed_when_the_device_is_idle(world: World) -> None:
    """Not while another group's kernel waits, which can hold up the driver."""
    free = threading.Event()

    async def main(pg: ProcessGroup) -> None:
        other = await pg.new_group()
        assert other is not None
        await reduced(other)
        side = world.modules["cupy.cuda"].Stream()
        side.give(free.wait)
        tensor = Tensor(np.ones(3, F32))
        with side:
            work = pg.all_reduce(tensor, async_op=True)
        work.synchronize(world.modules["cupy.cuda"].Stream())  # it is launched
        await other.aclose()
        await pg.barrier()
        assert "destroy" not in world.log
        await pg.barrier()
        free.set()
        await work
        await pg.barrier()
        count = destroyed(world)
        await pg.barrier()
        assert count == 2

    await run_cluster(2, main, backend=BACKEND)
    assert destroyed(world) == 4


async def test_abort_lets_a_launch_end_that_is_inside_nccl(world: World) -> None:
    """It frees what the launch works on."""
    inside, out = threading.Event(), threading.Event()

    async def main(pg: ProcessGroup) -> None:
        await reduced(pg)
        await passed_by_all(pg)
        if pg.rank == 0:
            world.launching = launching
            work = pg.all_reduce(Tensor(np.ones(3, F32)), async_op=True)
            assert inside.wait(30)
            pg.abort("enough")
            await asyncio.to_thread(out.wait, 0.5)  # time for an abort that does not wait
            assert not any(made.aborted for made in world.communicators if made.rank == 0)
            out.set()
            with pytest.raises(dist.GroupAborted, match="enough"):
                await work
        else:
            with pytest.raises(dist.GroupAborted, match="enough"):
                await pg.recv(np.zeros(1), 0)  # never comes

    def launching(communicators: list[Any]) -> None:
        inside.set()
        assert out.wait(30)

    await run_cluster(2, main, backend=BACKEND)
    assert world.log.count("abort") == 2


async def test_error_is_heard_of_while_launches_wait_in_their_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch thread is busy for longer than the time between two questions; the error comes later."""
    free, questions = threading.Event(), 0
    check = lane.Lane.check

    def counted(self: lane.Lane, wait: bool = True) -> None:
        nonlocal questions
        questions += 1
        if questions == 2:
            world.communicators[0].sick = RuntimeError("NCCL_ERROR_REMOTE_ERROR")
            free.set()
        check(self, wait)

    async def main(pg: ProcessGroup) -> None:
        device._devices[0].collectives.submit(free.wait)  # type: ignore[arg-type]
        with pytest.raises(dist.GroupBroken, match="NCCL_ERROR_REMOTE_ERROR"):
            async with asyncio.timeout(10):
                await pg.all_reduce(Tensor(np.ones(3, F32)))

    monkeypatch.setattr(engine, "_POLL", 0.001)
    monkeypatch.setattr(lane.Lane, "check", counted)
    try:
        await run_cluster(1, main, backend=BACKEND)
    finally:
        free.set()


async def test_error_that_nccl_found_by_itself_breaks_the_group(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        await reduced(pg)
        await passed_by_all(pg)
        for communicator in world.communicators if pg.rank == 0 else ():
            communicator.sick = RuntimeError("NCCL_ERROR_REMOTE_ERROR")
        with pytest.raises(dist.GroupBroken, match="NCCL_ERROR_REMOTE_ERROR"):
            await pg.all_reduce(Tensor(np.ones(3, F32)))

    await run_cluster(2, main, backend=BACKEND)
