"""What other implementations got wrong, one test each. Numbers in brackets are issues of theirs."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.host.backend import HostBackend
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from tests.helpers import core_of, error_of
from tests.levels import COSTLY


def mine(rank: int, count: int = 4) -> Any:
    """Distinct values for a rank and each element."""
    return np.arange(count, dtype=np.int64) + 100 * (rank + 1)


def total(size: int, count: int = 4) -> Any:
    """The sum over all ranks."""
    return sum(mine(rank, count) for rank in range(size))


async def test_pitfall_1_number_is_taken_in_the_call_not_at_the_first_await() -> None:
    """Coroutines are lazy, and gather reorders them: the order of calls counts, in whatever order they are
    awaited (pytorch/pytorch#175145)."""

    async def main(pg: ProcessGroup) -> None:
        works = [pg.all_reduce(mine(pg.rank) * (n + 1), async_op=True) for n in range(6)]
        assert [work.seq - works[0].seq for work in works] == list(range(6))
        order = list(range(6)) if pg.rank else [5, 0, 3, 1, 4, 2]

        async def one(n: int) -> Any:
            return await works[n]

        results = await asyncio.gather(*[one(n) for n in order])
        for n, result in zip(order, results, strict=True):
            assert np.array_equal(result, total(3) * (n + 1))

    await run_cluster(3, main)


def test_pitfall_2_groups_need_no_common_order_and_do_not_block_each_other() -> None:
    """Two groups used in opposite orders (meta-pytorch/torchrec#4149), one of them with a large tensor that
    nobody takes yet: it stalls nothing of the other's."""

    async def main(pg: ProcessGroup) -> None:
        left, right = await pg.new_group(), await pg.new_group()
        assert left is not None and right is not None
        large = np.full(1_000_000, pg.rank)
        if pg.rank == 0:
            stuck = left.all_reduce(large, async_op=True)
            for _ in range(50):
                assert np.array_equal(await right.all_reduce(mine(0)), total(2))
        else:
            for _ in range(50):
                assert np.array_equal(await right.all_reduce(mine(1)), total(2))
            assert not core_of(left).flight.collectives()
            stuck = left.all_reduce(large, async_op=True)
        assert (await stuck)[7] == 1

    run_virtual(run_cluster(2, main))


async def test_pitfall_3_await_means_that_the_result_is_in_the_tensor() -> None:
    """A wait that orders a device stream, and not the host, lets the host read too early. Here await is for
    the host, and `synchronize`, which is for streams, is refused rather than passed over."""

    async def main(pg: ProcessGroup) -> None:
        tensor = mine(pg.rank)
        work = pg.all_reduce(tensor, async_op=True)
        with pytest.raises(dist.UsageError, match="has no stream"):
            work.synchronize()
        await work
        assert np.array_equal(tensor, total(2))

    await run_cluster(2, main)


async def test_pitfall_4_no_call_waits_for_a_peer() -> None:
    """A library's enqueue itself may block (pytorch/pytorch#120683): here every call returns although nobody
    answers, and long work runs off the loop."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            await pg.barrier()
            assert np.array_equal(await pg.all_reduce(np.arange(2_000_000)), np.arange(2_000_000) * 2)
            await pg.recv(np.empty(300_000), 0)
            return
        barrier = pg.barrier(async_op=True)
        held = [
            pg.all_reduce(np.arange(2_000_000), async_op=True),
            pg.send(np.ones(300_000), 1, async_op=True),
        ]
        assert not any(work.done() for work in held)
        await barrier
        for work in held:
            await work

    await run_cluster(2, main)


def test_pitfall_5_late_frames_of_a_timed_out_operation_never_match_the_next() -> None:
    """After a timeout the next send must not be taken for the old one's (pytorch/pytorch#32363): the group is
    over, its cause is kept, and a new group of the same ranks sees nothing of what comes late."""

    async def main(pg: ProcessGroup) -> None:
        first = await pg.new_group()
        assert first is not None
        if pg.rank == 0:
            assert isinstance(await error_of(first.recv(np.zeros(4, np.int64), 1, timeout=1)), TimeoutError)
        else:
            await asyncio.sleep(2)
            assert isinstance(await error_of(first.send(mine(9), 0)), dist.GroupBroken)  # too late
        for _ in range(2):
            error = await error_of(first.barrier())
            assert isinstance(error, dist.CollectiveTimeout)
        second = await pg.new_group()
        assert second is not None
        assert core_of(second).roster.context != core_of(first).roster.context
        if pg.rank == 0:
            tensor = np.zeros(4, np.int64)
            await second.recv(tensor, 1)
            assert np.array_equal(tensor, mine(1))
        else:
            await second.send(mine(1), 0)

    run_virtual(run_cluster(2, main))


@pytest.mark.slow(COSTLY)
async def test_pitfall_6_un_awaited_works_keep_their_tensors_and_tell_no_collector() -> None:
    """Handles and tensors that the caller drops live until the operation has ended, and what a dropped one
    failed with is not logged by the garbage collector (pytorch/pytorch#137014)."""
    results = []

    async def main(pg: ProcessGroup) -> None:
        pg.send(mine(pg.rank, 50_000), 1 - pg.rank, async_op=True)  # larger than what leaves at once
        gc.collect()
        tensor = np.zeros(50_000, np.int64)
        await pg.recv(tensor, 1 - pg.rank)
        results.append(np.array_equal(tensor, mine(1 - pg.rank, 50_000)))
        pg.all_reduce(mine(pg.rank), async_op=True)
        pg.recv(np.zeros(3), 1 - pg.rank, async_op=True)
        pg.abort("for the test")
        gc.collect()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await run_cluster(2, main)
        gc.collect()
    assert results == [True, True]


@pytest.mark.slow(COSTLY)
@pytest.mark.filterwarnings("ignore:.*never closed that new_group:RuntimeWarning")
async def test_pitfall_7_closing_is_explicit_and_no_finalizer_communicates() -> None:
    """A finalizer that ends a group collectively hangs or deadlocks (pytorch/pytorch#119797): dropping a
    group, and collecting it, says nothing to anybody. The loop says goodbye later, and waits for nobody."""

    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        await group.barrier()
        said = []
        flood = core_of(pg).control.flood
        core_of(pg).control.flood = lambda *what: said.append(what)  # type: ignore[method-assign]
        del group
        gc.collect()
        assert said == []
        core_of(pg).control.flood = flood  # type: ignore[method-assign]
        assert np.array_equal(await pg.all_reduce(mine(pg.rank)), total(3))
        assert not any(hasattr(kind, "__del__") for kind in (ProcessGroup, HostBackend))

    await run_cluster(3, main)


@pytest.mark.parametrize("layout", ["gaps", "fortran", "reversed", "transposed"])
async def test_pitfall_8_non_contiguous_tensors(layout: str) -> None:
    """gloo and NCCL read a strided tensor as though it were contiguous (pytorch/pytorch#192920, #159548).
    Values differ between elements: a constant tensor would not notice (#158902)."""

    def laid(array: Any) -> Any:
        base = np.full((7, 9), -1, np.int64)
        view = {
            "gaps": base[:6:2, 1:9:2],
            "fortran": np.full((3, 4), -1, np.int64, order="F"),
            "reversed": base[2::-1, 3::-1],
            "transposed": base[:4, :3].T,
        }[layout]
        view[...] = array
        return view

    async def main(pg: ProcessGroup) -> None:
        array = mine(pg.rank, 12).reshape(3, 4)
        everybody = [mine(rank, 12).reshape(3, 4) for rank in range(pg.size)]
        tensor = laid(array)
        await pg.all_reduce(tensor)
        assert np.array_equal(tensor, sum(everybody))
        assert tensor.base is None or (tensor.base == -1).sum() == tensor.base.size - 12  # nothing beside it
        tensor = laid(array)
        await pg.broadcast(tensor, 1)
        assert np.array_equal(tensor, everybody[1])
        out = np.stack([laid(0)] * 3, axis=-1).transpose(2, 0, 1)
        await pg.all_gather(laid(array), out)
        assert np.array_equal(out, everybody)
        if pg.rank == 0:
            await pg.send(laid(array), 1)
        elif pg.rank == 1:
            tensor = laid(0)
            await pg.recv(tensor, 0)
            assert np.array_equal(tensor, everybody[0])

    await run_cluster(3, main)


async def test_pitfall_9_outputs_that_are_one_tensor_are_refused() -> None:
    """`[t] * n` as the outputs: what one rank sent would overwrite another's."""

    async def main(pg: ProcessGroup) -> None:
        tensor, row, base = mine(pg.rank), np.zeros(4, np.int64), np.zeros(9, np.int64)
        for outputs in ([row] * 3, [base[:4], base[3:7], base[5:]], [tensor, row, base[:4]]):
            with pytest.raises(dist.UsageError, match="share memory"):
                dist.all_gather(outputs, tensor)
            with pytest.raises(dist.UsageError, match="share memory"):
                dist.all_to_all(outputs, [tensor] * 3)
        with pytest.raises(dist.UsageError, match="share memory"):
            pg.all_reduce(base[:6], out=base[2:8])
        with pytest.raises(dist.UsageError, match="overlaps itself"):
            pg.all_reduce(np.lib.stride_tricks.as_strided(base, (4, 4), (8, 8)))
        await dist.all_gather([base[:4], base[4:8], row], tensor)
        assert np.array_equal(base[4:8], mine(1))

    await run_cluster(3, main)


async def test_pitfall_10_avg_divides_by_ranks_and_not_for_integers() -> None:
    """AVG that was silently a sum (pytorch/pytorch#162338), or divided by the number of elements
    (meta-pytorch/torchcomms#287)."""

    async def main(pg: ProcessGroup) -> None:
        for dtype in ("float16", "float32", "float64", "complex64"):
            tensor: Any = (np.array([1, 2, 9]) * (pg.rank + 1)).astype(dtype)
            await pg.all_reduce(tensor, dist.ReduceOp.AVG)
            assert np.array_equal(tensor, np.array([2.5, 5.0, 22.5]).astype(dtype))
        part = await pg.reduce_scatter(np.arange(8.0) * (pg.rank + 1), op=dist.ReduceOp.AVG)
        assert np.array_equal(part, np.arange(8.0)[2 * pg.rank : 2 * pg.rank + 2] * 2.5)
        for integers in (np.arange(3), np.ones(3, bool)):
            with pytest.raises(dist.UsageError, match="AVG of"):
                pg.all_reduce(integers, dist.ReduceOp.AVG)

    await run_cluster(4, main)


def test_pitfall_11_zero_size_takes_a_number_and_synchronises() -> None:
    """A tensor without elements ended the process by SIGFPE (pytorch/pytorch#85234). It is an operation like
    any other."""

    async def main(pg: ProcessGroup) -> None:
        empty = np.zeros((0, 3))
        works = [
            pg.all_reduce(empty, async_op=True),
            pg.broadcast(empty, 1, async_op=True),
            pg.reduce(empty, 2, async_op=True),
            pg.all_gather(empty, async_op=True),
            pg.reduce_scatter(empty, async_op=True),
            pg.gather(empty, 1, async_op=True),
            pg.all_to_all(empty, async_op=True),
        ]
        assert [work.seq - works[0].seq for work in works] == list(range(len(works)))
        for work in works:
            await work
        loop = asyncio.get_running_loop()
        if pg.rank == 2:
            await asyncio.sleep(5)
        await pg.all_reduce(empty)
        assert loop.time() >= 5  # nobody went on before all had come
        if pg.rank == 0:
            await pg.send(empty, 1)
        elif pg.rank == 1:
            assert await pg.recv(np.zeros((0, 3)), 0) == 0

    run_virtual(run_cluster(3, main))


async def test_pitfall_12_ranks_are_global_and_strangers_are_told() -> None:
    """`src` and `dst` of module-level calls are global ranks; a process that is no member is warned, does
    nothing and gets None."""

    async def main(pg: ProcessGroup) -> None:
        group = await dist.new_group([1, 2])
        tensor = mine(pg.rank)
        if pg.rank == 0:
            with pytest.warns(UserWarning, match="not a member"):
                handle = dist.broadcast(tensor, 2, group)
            assert await handle is None
            assert np.array_equal(tensor, mine(0))
            return
        await dist.broadcast(tensor, 2, group)
        assert np.array_equal(tensor, mine(2))
        with pytest.raises(dist.UsageError, match="not a member"):
            dist.broadcast(tensor, 0, group)

    await run_cluster(3, main)


def test_pitfall_13_new_group_disagreement_is_found_and_members_alone_may_call() -> None:
    """new_group in another order on another rank gives groups that are not each other's
    (NVIDIA/nccl#1394 is of that make): it is a mismatch. Members alone may call it, locally."""

    async def crossed(pg: ProcessGroup) -> None:
        lists = [[0, 1], [1, 2]]
        error = await error_of(pg.new_group(lists[pg.rank == 2]))
        assert isinstance(error, dist.CollectiveMismatch)
        assert "ranks [0, 1]" in str(error) and "ranks [1, 2]" in str(error)

    async def local(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            return
        group = await pg.new_group([1, 2], use_local_synchronization=True)
        assert group is not None
        assert np.array_equal(await group.all_reduce(mine(group.rank)), total(2))

    run_virtual(run_cluster(3, crossed))
    run_virtual(run_cluster(3, local))


async def test_pitfall_14_batches_match_in_any_order_and_coalescing_mixes() -> None:
    """A batch whose messages stand in unlike orders on the two sides; and collectives of several kinds in one
    coalesced block, which elsewhere have to be alike."""

    async def main(pg: ProcessGroup) -> None:
        peer = 1 - pg.rank
        tensors = [np.zeros(30_000, np.int64) for _ in range(3)]
        sends = [dist.P2POp(dist.isend, mine(pg.rank, 30_000) * (n + 1), peer, tag=n) for n in range(3)]
        receives = [dist.P2POp(dist.irecv, tensor, peer, tag=n) for n, tensor in enumerate(tensors)]
        batch = [*sends, *receives] if pg.rank else [*receives[::-1], *sends[::-1]]
        for handle in dist.batch_isend_irecv(batch):
            await handle
        for n, tensor in enumerate(tensors):
            assert np.array_equal(tensor, mine(peer, 30_000) * (n + 1))
        summed, told = mine(pg.rank), mine(pg.rank)
        async with pg.coalesce():
            pg.all_reduce(summed)
            pg.broadcast(told, 1)
            rows = pg.all_gather(mine(pg.rank), async_op=True)
        assert np.array_equal(summed, total(2)) and np.array_equal(told, mine(1))
        assert np.array_equal(await rows, [mine(0), mine(1)])

    await run_cluster(2, main)


def test_pitfall_15_when_a_send_is_over_is_documented_and_kept() -> None:
    """A send may be over before its receive for messages of up to 8 KiB, 64 KiB under way; a larger one waits
    (mpi4py/mpi4py#161 asks to select on it). The docstring says so."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            await pg.send(np.zeros(8192, np.uint8), 1, tag=1)
            large = pg.send(np.zeros(8193, np.uint8), 1, tag=2, async_op=True)
            await asyncio.sleep(5)
            assert not large.done()
            await pg.barrier()
            await large
        else:
            await pg.barrier()
            await pg.recv(np.empty(8193, np.uint8), 0, tag=2)
            await pg.recv(np.empty(8192, np.uint8), 0, tag=1)

    assert pg_send_says_so()
    run_virtual(run_cluster(2, main))


def pg_send_says_so() -> bool:
    """Whether the documentation of `send` has both figures."""
    text = ProcessGroup.send.__doc__ or ""
    return "8 KiB" in text and "64 KiB" in text
