"""How the engine uses its library: order, threads, what is stopped and given back. No result is NCCL's."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.foreign import Setup
from aiodist.backends.nccl import communicators, device, engine
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from tests.backends.cuda.stand_in import Tensor
from tests.backends.nccl.stand_in import World

BACKEND = "cpu:host,cuda:nccl"
F32 = np.float32


@pytest.fixture(params=[True])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A stand-in for CuPy, with a device for each rank of the cluster."""
    made = World(request.param)
    for name, module in made.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    monkeypatch.setattr(device, "_devices", {})
    monkeypatch.setattr(device, "_never_freed", [])
    begin: Callable[[Any, Setup], None] = engine.NcclEngine.__init__

    def apart(self: Any, setup: Setup) -> None:
        begin(self, setup)
        self._index = setup.ranks[setup.rank]

    monkeypatch.setattr(engine.NcclEngine, "__init__", apart)
    yield made
    made.close()


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
        never.close()  # type: ignore[attr-defined]

    await run_cluster(2, main, backend=BACKEND)
    assert world.log.count("split") == 2
    assert destroyed(world) == 4


async def test_abort_ends_what_is_under_way_and_the_other_groups_of_the_device(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        other = await pg.new_group()
        assert other is not None
        await reduced(pg)
        await reduced(other)
        if pg.rank == 0:
            work = pg.all_reduce(Tensor(np.ones(3, F32)), async_op=True)  # alone
            await asyncio.sleep(0)
            pg.abort("enough")
            with pytest.raises(dist.GroupAborted, match="enough"):
                await work
            with pytest.raises(dist.GroupAborted, match="enough"):
                work.synchronize()
        with pytest.raises(dist.GroupAborted, match="enough"):
            await pg.barrier()
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
        await pg.barrier()
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


async def test_error_that_nccl_found_by_itself_breaks_the_group(world: World) -> None:
    async def main(pg: ProcessGroup) -> None:
        await reduced(pg)
        await pg.barrier()
        for communicator in world.communicators:
            communicator.sick = RuntimeError("NCCL_ERROR_REMOTE_ERROR")
        with pytest.raises(dist.GroupBroken, match="NCCL_ERROR_REMOTE_ERROR"):
            await pg.all_reduce(Tensor(np.ones(3, F32)))

    await run_cluster(2, main, backend=BACKEND)
