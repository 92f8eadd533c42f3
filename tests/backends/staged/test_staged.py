"""Device tensors through the host: results, places side by side, streams, threads, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.base.environment.thresholds import Thresholds
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from aiodist.transport.memory import MemoryNetwork
from tests.backends.cuda.stand_in import CUDARuntimeError, Devices, Tensor
from tests.backends.staged.library import StandIn
from tests.gpu.conformance import check_programs
from tests.levels import few
from tests.waiting import until_so

BACKEND = "cpu:host,cuda:host"

pytestmark = pytest.mark.usefixtures("devices")


async def turns() -> None:
    """As many as what is not to happen would take."""
    for _ in range(50):
        await asyncio.sleep(0)


# ── results ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", few([1, 2, 3, 5], [1, 2]))
async def test_random_programs(size: int) -> None:
    async def main(pg: ProcessGroup) -> None:
        assert (pg.backend, pg.device) == ("host", 0)
        await check_programs(pg, StandIn(), 10 * size)

    await run_cluster(size, main, backend=BACKEND)


async def test_factors_lists_and_batches() -> None:
    async def main(pg: ProcessGroup) -> None:
        me, size = pg.rank, pg.size
        mine = Tensor(np.arange(6.0) * (me + 1))
        await pg.all_reduce(mine, dist.premul_sum(0.5 * (me + 1)))
        assert np.array_equal(mine.array, np.arange(6.0) * 0.5 * (1 + 4 + 9))
        parts = [Tensor(np.arange(3) + 10 * me + 100 * rank) for rank in range(size)]
        rows = [Tensor(np.zeros(3, np.int64)) for _ in range(size)]
        await dist.all_to_all(rows, parts)
        for rank, row in enumerate(rows):
            assert np.array_equal(row.array, np.arange(3) + 10 * rank + 100 * me)
        await dist.all_gather(rows, parts[0])
        for rank, row in enumerate(rows):
            assert np.array_equal(row.array, np.arange(3) + 10 * rank)
        summed = Tensor(np.zeros(3, np.int64))
        await dist.reduce_scatter(summed, parts)
        assert np.array_equal(summed.array, 3 * np.arange(3) + 30 + 300 * me)
        tensors = [Tensor(np.arange(7) * (me + 1) + i) for i in range(4)]
        here = np.arange(5) + me
        async with pg.coalesce():
            for i, tensor in enumerate(tensors):
                pg.all_reduce(tensor)
                if i == 1:
                    pg.all_reduce(here)
        for i, tensor in enumerate(tensors):
            assert np.array_equal(tensor.array, np.arange(7) * 6 + 3 * i)
        assert np.array_equal(here, np.arange(5) * 3 + 3)

    await run_cluster(3, main, backend=BACKEND)


async def test_ranks_with_tensors_in_different_places() -> None:
    async def main(pg: ProcessGroup) -> None:
        me = pg.rank

        def put(array: Any) -> Any:
            return array if me == 1 else Tensor(array)

        summed, rows = np.arange(5000.0) + me, np.zeros((3, 4), np.int64)
        works = [
            pg.all_reduce(put(summed), async_op=True),
            pg.all_gather(put(np.arange(4) + 10 * me), put(rows), async_op=True),
            pg.barrier(async_op=True),
        ]
        assert [work.seq - works[0].seq for work in works] == [0, 1, 2]
        await asyncio.gather(*works)
        assert np.array_equal(summed, np.arange(5000.0) * 3 + 3)
        assert np.array_equal(rows, np.arange(4) + 10 * np.arange(3)[:, None])
        right, left = (me + 1) % 3, (me - 1) % 3
        into = np.zeros(900, np.float32)
        sent = pg.send(put(np.arange(900, dtype=np.float32) - me), right, async_op=True)
        assert await pg.recv(put(into), None if me else left) == left
        await sent
        assert np.array_equal(into, np.arange(900, dtype=np.float32) - left)
        assert await pg.all_gather_object(me) == [0, 1, 2]

    await run_cluster(3, main, backend=BACKEND)


@pytest.mark.parametrize("source", [0, None])
async def test_messages_of_one_tag_keep_their_order_across_places(
    source: int | None, devices: Devices
) -> None:
    """Sends leave when they are on the host; receives take their place when they are posted."""

    async def main(pg: ProcessGroup) -> None:
        arrays = [np.arange(3) + 10 * i for i in range(4)]
        if pg.rank == 0:
            devices.free.clear()
            works = [pg.send(a if i % 2 else Tensor(a), 1, async_op=True) for i, a in enumerate(arrays)]
            await turns()
            devices.free.set()
            await asyncio.gather(*works)
        else:
            into = [np.zeros(3, np.int64) for _ in arrays]
            received = [pg.recv(a if i % 2 else Tensor(a), source, async_op=True) for i, a in enumerate(into)]
            assert await asyncio.gather(*received) == [0] * 4
            assert np.array_equal(into, arrays)

    await run_cluster(2, main, backend=BACKEND)


@pytest.mark.parametrize("order", ["hhdd", "hdhd", "hhdh", "dhhd", "hhhd"])
async def test_receives_of_one_step_keep_their_order_across_places(order: str) -> None:
    """A receive on the host may have to wait two turns, since one before it may be taken back. Then one on
    the device waits behind it."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            for i in range(len(order)):
                await pg.send(np.arange(3) + 10 * i, 1)
            await pg.barrier()
        else:
            into = [np.zeros(3, np.int64) for _ in order]
            await pg.barrier()  # all are here
            received = [pg.recv(a if at == "h" else Tensor(a), 0) for at, a in zip(order, into, strict=True)]
            await asyncio.gather(*received)
            assert np.array_equal(into, [np.arange(3) + 10 * i for i in range(len(order))])

    await run_cluster(2, main, backend=BACKEND)


async def test_a_device_receive_waits_behind_one_whose_cancel_is_on_its_way() -> None:
    """The message of a receive that was cancelled goes to the next one, wherever that wants it."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            for i in range(2):
                await pg.send(np.arange(3) + 10 * i, 1)
            await pg.barrier()
        else:
            into = [np.zeros(3, np.int64) for _ in range(3)]
            await pg.barrier()
            first = asyncio.ensure_future(pg.recv(into[0], 0))
            first.cancel()
            works = [pg.recv(Tensor(a), 0) for a in into[1:]]
            await asyncio.gather(*works)
            assert first.cancelled()
            assert np.array_equal(into[1:], [np.arange(3), np.arange(3) + 10])

    await run_cluster(2, main, backend=BACKEND)


async def test_batches_on_several_hosts_number_alike_in_each_place() -> None:
    """What is held back and then staged takes the hierarchy's numbers once."""

    async def main(pg: ProcessGroup) -> None:
        arrays = [np.arange(4000.0) * (pg.rank + i) for i in range(3)]
        for _ in range(2):
            async with pg.coalesce():
                for array in arrays:
                    pg.all_reduce(Tensor(array) if pg.rank % 2 else array)
        for i, array in enumerate(arrays):
            assert np.array_equal(array, np.arange(4000.0) * (6 + 4 * i) * 4)

    network = MemoryNetwork(hosts=["a", "a", "b", "b"])
    await run_cluster(4, main, backend=BACKEND, network=network, limits=Thresholds(hierarchy=1), timeout=10)


async def test_groups_of_groups_and_the_next_epoch() -> None:
    async def main(pg: ProcessGroup) -> None:
        evens = await pg.new_group([0, 2])
        halves = await pg.split(pg.rank % 2, key=-pg.rank)
        for group in (pg, evens, halves):
            if group is not None:
                mine = Tensor(np.arange(7)[::2] * (pg.rank + 1))
                await group.all_reduce(mine)
                assert np.array_equal(mine.array, np.arange(7)[::2] * sum(r + 1 for r in group.ranks))
        async with await pg.rebuild() as again:
            mine = Tensor(np.arange(5) + again.rank)
            await again.all_reduce(mine)
            assert np.array_equal(mine.array, np.arange(5) * 3 + 3)
            assert again.device == 0

    await run_cluster(3, main, backend=BACKEND)


# ── streams, threads and memory ──────────────────────────────────────────────────────────────────────


async def test_copies_wait_for_the_callers_stream_and_the_loop_for_neither(devices: Devices) -> None:
    async def main(pg: ProcessGroup) -> None:
        tensor, out = Tensor(np.zeros(3)), Tensor(np.zeros(3))
        free = threading.Event()
        devices.callers.give(free.wait)
        devices.callers.give(lambda: tensor.array.fill(5))  # what the caller computes
        work = pg.all_reduce(tensor, out=out, async_op=True)
        await turns()
        assert not work.done()
        assert np.array_equal(await pg.all_reduce(np.arange(3.0)), np.arange(3.0))
        free.set()
        assert await work is out
        assert out.array.tolist() == [5, 5, 5]

    await run_cluster(1, main, backend=BACKEND)


async def test_operation_in_a_batch_waits_for_the_stream_of_its_call(devices: Devices) -> None:
    """Not for the one that is current when the block ends; so do messages."""

    async def main(pg: ProcessGroup) -> None:
        tensor, out, sent = (Tensor(np.zeros(3)) for _ in range(3))
        side, free = devices.modules["cupy.cuda"].Stream(), threading.Event()
        side.give(free.wait)
        for given in (tensor, sent):
            side.give(partial(given.array.fill, 5))  # what the caller computes
        into = Tensor(np.zeros(3))
        message: Any
        async with pg.coalesce():
            with side:
                work = pg.all_reduce(tensor, out=out, async_op=True)
                if pg.rank == 0:
                    message = pg.send(sent, 1, async_op=True)
            if pg.rank == 1:
                message = pg.recv(into, 0, async_op=True)
        await turns()
        assert not work.done()
        free.set()
        assert (await work).array.tolist() == [10, 10, 10]
        await message
        assert pg.rank == 0 or into.array.tolist() == [5, 5, 5]

    await run_cluster(2, main, backend=BACKEND)


async def test_result_is_not_written_before_what_the_caller_reads_from_there(devices: Devices) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            await pg.broadcast(Tensor(np.arange(4)))
            return
        tensor = Tensor(np.full(4, 9))
        free, seen = threading.Event(), []
        devices.callers.give(free.wait)
        devices.callers.give(lambda: seen.append(tensor.array.copy()))
        work = pg.broadcast(tensor, async_op=True)
        await turns()
        free.set()
        await work
        assert np.array_equal(seen, [[9] * 4])
        assert np.array_equal(tensor.array, np.arange(4))

    await run_cluster(2, main, backend=BACKEND)


async def test_temporaries_live_until_they_are_copied(devices: Devices) -> None:
    """The tensor of the caller, and what a strided one is staged in on the device."""

    async def main(pg: ProcessGroup) -> None:
        empty: Any = devices.modules["cupy"].empty

        def temporary(value: int) -> Any:
            tensor = empty((50, 8), np.int32)
            tensor.array[...] = value
            return tensor

        works = [pg.all_gather(temporary(i), async_op=True) for i in range(5)]
        strided = [Tensor(np.full((40, 6), i)[:, ::2]) for i in range(5)]
        others = [pg.all_reduce(tensor, async_op=True) for tensor in strided]
        for i, work in enumerate(works):
            assert ((await work).array == i).all()
        await asyncio.gather(*others)
        for i, tensor in enumerate(strided):
            assert (tensor.array == 2 * i).all()

    await run_cluster(2, main, backend=BACKEND)


async def test_nothing_that_takes_long_is_done_on_the_loop(devices: Devices) -> None:
    async def main(pg: ProcessGroup) -> None:
        await check_programs(pg, StandIn(), 3, 20)

    await run_cluster(2, main, backend=BACKEND)
    names = {thread.name for thread in devices.users}
    assert names == {"aiodist-copy-out-0", "aiodist-copy-in-0"}
    assert devices.pinned


async def test_pinned_memory_goes_back_when_the_operation_is_over(devices: Devices) -> None:
    """At once, not when cycles are collected: it is scarce."""

    async def main(pg: ProcessGroup) -> None:
        gc.disable()
        try:
            for i in range(3):
                await pg.all_reduce(Tensor(np.arange(2000) * i))
                await pg.all_gather(Tensor(np.arange(30)[::3] + i))
            if pg.rank == 0:
                await pg.send(Tensor(np.arange(3)), 1)
            else:
                await pg.recv(Tensor(np.arange(3)), 0)
            await pg.barrier()
            await until_so(lambda: devices.returned == len(devices.pinned) == 3 * 2 * (1 + 2) + 1)
        finally:
            gc.enable()

    await run_cluster(2, main, backend=BACKEND)


async def test_stream_cannot_wait_for_it() -> None:
    async def main(pg: ProcessGroup) -> None:
        work = pg.all_reduce(Tensor(np.zeros(3)), async_op=True)
        with pytest.raises(dist.UsageError, match="all_reduce runs on the host and has no stream"):
            work.synchronize()
        await work

    await run_cluster(1, main, backend=BACKEND)


async def test_tensor_on_another_device_is_refused() -> None:
    async def main(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError, match="lies on cuda:3, this process's device is cuda:0"):
            await pg.all_reduce(Tensor(np.zeros(3), device=3))
        await pg.all_reduce(Tensor(np.zeros(3)))

    await run_cluster(1, main, backend=BACKEND)


# ── when it goes wrong ───────────────────────────────────────────────────────────────────────────────


async def test_ranks_that_disagree_are_told() -> None:
    async def main(pg: ProcessGroup) -> None:
        dtype = np.float64 if pg.rank else np.float32
        with pytest.raises(dist.CollectiveMismatch) as caught:
            await pg.all_reduce(Tensor(np.zeros(3, dtype)))
        assert caught.value.said == {0: "all_reduce(float32[3], SUM)", 1: "all_reduce(float64[3], SUM)"}

    await run_cluster(2, main, backend=BACKEND)


async def test_abort_does_not_wait_for_a_stream_that_is_stuck(devices: Devices) -> None:
    free = threading.Event()

    async def main(pg: ProcessGroup) -> None:
        tensor = Tensor(np.arange(3.0))
        if pg.rank == 0:
            devices.callers.give(free.wait)
            work = pg.all_reduce(tensor, async_op=True)
            await turns()
            pg.abort("enough")
        else:
            work = pg.all_reduce(tensor, async_op=True)
        with pytest.raises(dist.GroupAborted, match="enough"):
            await work
        assert tensor.array.tolist() == [0, 1, 2]
        async with await pg.rebuild() as again:  # has a thread of its own
            free.set()
            await again.all_reduce(tensor)
        assert tensor.array.tolist() == [0, 2, 4]

    await run_cluster(2, main, backend=BACKEND)
    assert devices.copies.count("out") <= 3  # rank 1 may have begun before the abort, rank 0 has not


@pytest.mark.parametrize("way", ["out", "in"])
async def test_abort_waits_for_what_is_being_copied(way: str, devices: Devices) -> None:
    devices.free.clear()

    async def main(pg: ProcessGroup) -> None:
        def issue(tensor: Any) -> Any:
            if way == "in":
                return pg.broadcast(tensor, async_op=True)
            return pg.all_reduce(tensor, async_op=True)

        if pg.rank == 0:
            work = issue(np.arange(3.0))
            with contextlib.suppress(dist.GroupAborted):
                await work
            return
        tensor = Tensor(np.full(3, 9.0))
        work = issue(tensor)
        await until_so(lambda: devices.copies == [way])
        pg.abort("enough")
        await turns()
        assert not work.done()
        devices.free.set()
        with pytest.raises(dist.GroupAborted, match="enough"):
            await work
        assert tensor.array.tolist() == ([0, 1, 2] if way == "in" else [9, 9, 9])

    await run_cluster(2, main, backend=BACKEND)


async def test_copy_that_fails_breaks_the_group(devices: Devices) -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.all_reduce(Tensor(np.zeros(3)))
        await pg.barrier()  # rank 0 has copied what it got
        if pg.rank == 1:
            devices.refused = CUDARuntimeError("cudaErrorIllegalAddress")
            with pytest.raises(dist.GroupBroken, match=r"rank 1 could not copy .*: cudaErrorIllegalAddress"):
                await pg.all_reduce(Tensor(np.zeros(3)))
        else:
            with pytest.raises(dist.GroupBroken, match="rank 1 could not copy"):
                await pg.all_reduce(np.zeros(3))

    await run_cluster(2, main, backend=BACKEND)


async def test_device_that_cannot_be_opened(devices: Devices) -> None:
    def refuse(**_: Any) -> None:
        raise CUDARuntimeError("cudaErrorDevicesUnavailable")

    devices.modules["cupy.cuda"].Stream = refuse  # type: ignore[attr-defined]

    async def main(pg: ProcessGroup) -> None:
        raise AssertionError("there is no group")

    with pytest.raises(ExceptionGroup) as caught:
        await run_cluster(1, main, backend=BACKEND)
    (error,) = caught.value.exceptions
    assert isinstance(error, dist.BackendUnavailable)
    assert "cuda:0 cannot be used (cudaErrorDevicesUnavailable)" in str(error)


@pytest.mark.parametrize("count", [4, 40_000])
@pytest.mark.parametrize("where", ["host", "device"])
async def test_a_send_whose_copy_has_not_begun_is_received_after_its_group_was_closed(
    count: int, where: str
) -> None:
    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        await group.barrier()
        if pg.rank == 0:
            group.send(Tensor(np.arange(float(count))), 1, async_op=True)
        else:
            place = np.zeros(count)
            into = Tensor(place)
            assert await group.recv(place if where == "host" else into, 0) == 0
            assert np.array_equal(place if where == "host" else into.array, np.arange(float(count)))
        await group.aclose()
        await pg.barrier()

    await run_cluster(2, main, backend=BACKEND)
