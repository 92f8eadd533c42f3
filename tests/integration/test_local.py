"""Ranks of one host through each other's memory: every path, every mixture of them, and how they end."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.host.local.board import SLOTS
from aiodist.backends.host.local.hub import _ENTRIES
from aiodist.backends.work import Work
from aiodist.base.errors import CollectiveMismatch, CollectiveTimeout, GroupBroken, UsageError
from aiodist.base.types import BFLOAT16, ReduceOp
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from aiodist.testing.conformance_backend import check_backend, check_concurrent, check_program
from tests.helpers import core_of, error_of, host_of
from tests.levels import COSTLY, few

# Thresholds so small that programs of small arrays go through every path, in many blocks.
TINY = {
    "AIODIST_DIRECT": "64",
    "AIODIST_INLINE": "512",
    "AIODIST_BLOCK": "4096",
    "AIODIST_STAGING": "4096",
    "AIODIST_DEPTH": "2",
}
DTYPES = [np.dtype(t) for t in (np.float32, np.int64, np.float16, np.complex64, np.bool_)] + [BFLOAT16]


def hub(pg: ProcessGroup) -> Any:
    """This process's side of shared memory."""
    return host_of(pg).resources.hub


def values(pg: ProcessGroup, count: int, dtype: np.dtype[Any], rank: int, salt: int = 0) -> Any:
    """Distinct values for each rank and element, whose sums are exact."""
    numbers = (np.arange(count) * 7 + rank * 3 + salt) % 13
    return numbers.astype(dtype)


# ── every path ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("world_size", few([2, 3, 5], [3]))
@spmd(transport="shm", env=TINY)
async def test_programs_in_many_blocks(pg: ProcessGroup, world_size: int) -> None:
    assert hub(pg) is not None
    for seed in range(4):
        await check_program(pg, 500 + seed, 40, big=20_000)
        await check_concurrent(pg, 600 + seed, 40)


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, transport="shm", env=TINY | {"AIODIST_POLL": "0"})
async def test_without_polling(pg: ProcessGroup) -> None:
    await check_backend(pg, 7)


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, transport="shm", env={"AIODIST_LOCAL": "0"})
async def test_messages_instead(pg: ProcessGroup) -> None:
    """Where flags in shared memory are not ordered, sockets carry everything."""
    assert hub(pg) is None
    await check_backend(pg, 8)


# ── arrays that all ranks map ────────────────────────────────────────────────────────────────────────


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("world_size", few([2, 3], [3]))
@spmd(transport="shm")
async def test_some_ranks_have_mapped_arrays_and_some_have_not(pg: ProcessGroup, world_size: int) -> None:
    await check_mixed(pg)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("world_size", few([2, 3], [3]))
@spmd(transport="shm", env=TINY)
async def test_some_ranks_have_mapped_arrays_in_many_blocks(pg: ProcessGroup, world_size: int) -> None:
    await check_mixed(pg)


async def check_mixed(pg: ProcessGroup) -> None:
    """Every rank chooses for itself, for source and result; all results are right, and bitwise alike."""
    rng = np.random.default_rng(pg.rank)
    size, members = pg.size, range(pg.size)
    for number, count in enumerate([1, 15, 16, 200, 1000, 5000, 40_000]):
        dtype = DTYPES[number % len(DTYPES)]
        if dtype == np.bool_:
            continue

        def make(shape: Any, dtype: Any = dtype) -> Any:
            return pg.empty(shape, dtype) if rng.random() < 0.5 else np.empty(shape, dtype)

        mine, total = (
            values(pg, count, dtype, pg.rank),
            sum(values(pg, count, dtype, r).astype(np.complex64) for r in members),
        )
        for separate in (False, True):
            tensor, out = make(count), make(count)
            tensor[...] = mine
            result = await pg.all_reduce(tensor, out=out if separate else None)
            assert (result.astype(np.complex64) == total).all()
            assert not separate or (tensor == mine).all()
        tensor = make(count)
        tensor[...] = mine
        await pg.reduce(tensor, dst=size - 1)
        expected = total if pg.rank == size - 1 else mine.astype(np.complex64)
        assert (tensor.astype(np.complex64) == expected).all()
        tensor = make(count)
        tensor[...] = mine
        await pg.broadcast(tensor, src=1)
        assert (tensor == values(pg, count, dtype, 1)).all()
        tensor[...] = mine
        gathered = await pg.all_gather(tensor, out=make((size, count)))
        assert all((gathered[r] == values(pg, count, dtype, r)).all() for r in members)
        parts = make((size, count))
        parts[...] = np.stack([values(pg, count, dtype, pg.rank, salt=r) for r in members])
        dealt = await pg.all_to_all(parts)
        assert all((dealt[r] == values(pg, count, dtype, r, salt=pg.rank)).all() for r in members)
        got = await pg.scatter(make(count), parts if pg.rank == 0 else None, src=0)
        assert (got == values(pg, count, dtype, 0, salt=pg.rank)).all()
        reduced = await pg.reduce_scatter(parts.reshape(-1), out=make(count))
        wanted = sum(values(pg, count, dtype, r, salt=pg.rank).astype(np.complex64) for r in members)
        assert (reduced.astype(np.complex64) == wanted).all()
        # What was given may be overwritten now, while others may still be at work.
        parts[...] = 0
        tensor[...] = 0


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("world_size", few([2, 3], [3]))
@spmd(transport="shm")
async def test_views_that_begin_at_any_byte(pg: ProcessGroup, world_size: int) -> None:
    await check_any_byte(pg)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("world_size", few([2, 3], [3]))
@spmd(transport="shm", env=TINY)
async def test_views_that_begin_at_any_byte_in_many_blocks(pg: ProcessGroup, world_size: int) -> None:
    await check_any_byte(pg)


async def check_any_byte(pg: ProcessGroup) -> None:
    """Every rank's begins at another one; misaligned views of wider dtypes are exposed like others."""
    size, members = pg.size, range(pg.size)
    rng = np.random.default_rng(pg.rank)
    dtypes = [np.dtype(t) for t in (np.uint8, np.int8, np.bool_, np.float32, np.float16)] + [BFLOAT16]

    def place(array: Any, first: int) -> Any:
        raw = pg.empty(first + array.nbytes + 3, np.uint8)
        raw[...] = 0xA5  # what a peer that reads too early or too late would find
        there = raw[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
        there[...] = array
        return there

    for number, count in enumerate([1, 5, 63, 1000, 8191, 33_333, 70_001, 70_001, 70_001]):
        dtype = dtypes[number % len(dtypes)]
        mine = [values(pg, count, dtype, pg.rank, salt=part) for part in members]
        theirs = [[values(pg, count, dtype, rank, salt=part) for part in members] for rank in members]
        offset = int(rng.integers(0, 33)) | (number + pg.rank) % 2

        summed = [np.sum([row[part].astype(np.int64) for row in theirs], 0).astype(dtype) for part in members]
        tensor = place(mine[0], offset)
        await pg.all_reduce(tensor)
        assert (tensor == summed[0]).all()
        bits = await pg.all_gather(tensor.view(np.uint8))  # not aligned, either
        assert all((row == bits[0]).all() for row in bits)
        out = place(np.zeros(count, dtype), offset + 1)
        await pg.all_reduce(place(mine[0], offset), out=out)
        assert (out == summed[0]).all()
        tensor = place(mine[0], offset)
        await pg.reduce(tensor, dst=size - 1)
        assert (tensor == (summed[0] if pg.rank == size - 1 else mine[0])).all()
        tensor = place(mine[0], offset)
        await pg.broadcast(tensor, src=1)
        assert (tensor == theirs[1][0]).all()
        gathered = await pg.all_gather(place(mine[0], offset), out=place(np.zeros((size, count), dtype), 1))
        assert all((gathered[rank] == theirs[rank][0]).all() for rank in members)
        dealt = await pg.all_to_all(place(np.stack(mine), offset))
        assert all((dealt[rank] == theirs[rank][pg.rank]).all() for rank in members)
        parts = place(np.stack(mine), offset)
        got = await pg.scatter(place(np.zeros(count, dtype), 1), parts if pg.rank == 0 else None, src=0)
        assert (got == theirs[0][pg.rank]).all()
        reduced = await pg.reduce_scatter(
            parts.reshape(-1), out=place(np.zeros(count, dtype), offset), op=dist.ReduceOp.MAX
        )
        assert (reduced == np.max([row[pg.rank].astype(np.float32) for row in theirs], 0).astype(dtype)).all()


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_nans_of_misaligned_arrays_are_the_same_on_all_ranks(pg: ProcessGroup) -> None:
    """Law 3, also where NumPy chooses between two NaNs by how operands are aligned."""
    for count in (1, 3, 1000, 5000, 60_000):
        for first in (0, 1, 2, 3, 5):
            raw = pg.empty(count * 4 + 64, np.uint8)
            tensor = raw[first + 7 * pg.rank :][: count * 4].view(np.float32)
            tensor.view(np.uint32)[...] = 0x7FC00000 + np.arange(count) + 100_000 * (pg.rank + 1)
            await pg.all_reduce(tensor)
            seen = await pg.all_gather(tensor.view(np.uint32))
            assert np.isnan(tensor).all()
            assert (seen[0] == seen[1]).all()


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_mapped_memory_is_given_back_with_the_last_view(pg: ProcessGroup) -> None:
    shared = hub(pg)
    before = shared.taken()
    first = pg.empty((3, 1000), np.float64)
    assert first.shape == (3, 1000)
    assert first.dtype == np.float64
    assert first.flags.c_contiguous
    address = first.__array_interface__["data"][0]
    row = first[1]
    del first
    gc.collect()
    assert pg.empty(3000, np.float64).__array_interface__["data"][0] != address  # a view is left
    del row
    gc.collect()
    assert pg.empty(3000, np.float64).__array_interface__["data"][0] == address
    gc.collect()
    assert shared.taken() == before


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_what_empty_refuses_and_what_is_empty(pg: ProcessGroup) -> None:
    assert pg.empty(0).shape == (0,)
    assert pg.empty((2, 0, 3), np.int8).shape == (2, 0, 3)
    assert pg.empty((), BFLOAT16).shape == ()
    with pytest.raises(UsageError, match="negative"):
        pg.empty((2, -1))
    for shape, dtype in (("x", np.int8), (2.5, np.int8), ((1, None), np.int8), (3, "no dtype")):
        with pytest.raises(UsageError, match="is not a shape and a dtype"):
            pg.empty(shape, dtype)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be communicated"):
        pg.empty(3, np.dtype("U4"))
    kept = pg.empty(5, np.int32)
    kept[...] = pg.rank
    await pg.all_reduce(kept)
    await pg.aclose()
    assert (kept == 1).all()  # it outlives the group


@spmd(world_size=2, transport="tcp")
async def test_empty_without_shared_memory_is_an_ordinary_array(pg: ProcessGroup) -> None:
    array = pg.empty((4, 4), np.float32)
    array[...] = pg.rank + 1
    await pg.all_reduce(array)
    assert (array == 3).all()


# ── the fast path ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("world_size", few([2, 3], [3]))
@spmd(transport="shm")
async def test_short_and_long_all_reduces_meet(pg: ProcessGroup, world_size: int) -> None:
    """Ranks may take different ways into the same operation: a strided view, a timeout, or neither."""
    assert core_of(pg).starter is not None
    for number in range(300):
        count = 1 + number % 40
        wide = np.zeros((count, 2), np.float64)
        tensor = wide[:, 0] if (number + pg.rank) % 3 == 0 else np.zeros(count)
        tensor[...] = np.arange(count) + number * (pg.rank + 1)
        op = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG)[number % 3]
        await pg.all_reduce(tensor, op, timeout=None if number % 5 else 30)
        inputs = np.stack([np.arange(count) + number * (rank + 1) for rank in range(pg.size)])
        expected = (inputs.sum(0), inputs.max(0), inputs.sum(0) / pg.size)[number % 3]
        assert (tensor == expected).all()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("world_size", few([2, 4], [2]))
@spmd(transport="shm")
async def test_more_in_flight_than_there_are_slots(pg: ProcessGroup, world_size: int) -> None:
    tensors = [np.full(8, pg.rank * 1000 + number, np.int64) for number in range(SLOTS * 5)]
    works = [pg.all_reduce(tensor, async_op=True) for tensor in tensors]
    for number in reversed(range(len(works))):
        await works[number]
        total = sum(rank * 1000 + number for rank in range(pg.size))
        assert (tensors[number] == total).all()


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_a_short_handle_does_all_that_any_other_does(pg: ProcessGroup) -> None:
    for count in (3, 3000, 30_000):  # in the slot, beside it, in parts
        if pg.rank == 0:
            await pg.recv(np.zeros(1), 1)  # it has looked at its handle while it was pending
        work: Any = pg.all_reduce(np.ones(count), async_op=True)
        assert type(work) is Work
        if pg.rank == 1:
            assert repr(work) == f"<Work all_reduce #{work.seq} pending>"
            with pytest.raises(UsageError, match="has no stream"):
                work.synchronize()
            with pytest.raises(asyncio.InvalidStateError):
                work.exception()
            assert not work.done()
            await pg.send(np.zeros(1), 0)
        await work
        assert repr(work) == f"<Work all_reduce #{work.seq} done>"
        with pytest.raises(UsageError, match="has no stream"):
            work.synchronize()
        assert work.exception() is None
        for name in set(vars(Work)["__slots__"]) - {"__weakref__", "_steps", "_untold"}:
            getattr(work, name)  # whatever of the library looks at a Work finds it
    if pg.rank == 0:
        await pg.send(np.zeros(1), 1)  # it is through with its last operation: nobody can end that one
        return
    await pg.recv(np.zeros(1), 0)
    work = pg.all_reduce(np.ones(3), async_op=True)
    pg.abort("enough")
    with pytest.raises(GroupBroken, match="enough"):
        work.synchronize()
    assert "failed: " in repr(work)


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_nobody_awaits_and_it_ends_all_the_same(pg: ProcessGroup) -> None:
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    tensor = np.array([pg.rank + 1.0])
    work = pg.all_reduce(tensor, async_op=True)
    work.add_done_callback(lambda done: ended.set_result(done.result()))
    assert (await ended)[0] == 3
    assert work.is_success()
    assert (work.op, work.seq) == ("all_reduce", work.call.seq)
    await pg.drain()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("roots", few([[0, 0, 2, 0], [0, 1, 2, 3], [0, 1, 0, 1]], [[0, 0, 2, 0]]), ids=str)
@spmd(world_size=4, transport="shm")
async def test_the_next_operation_of_all_tells_of_different_roots(pg: ProcessGroup, roots: list[int]) -> None:
    """A root waits for nobody, and who takes from one that agrees looks at no other."""
    for count, then in ((3, 0), (3000, 0), (30, 5000), (30, 500_000)):
        group = await pg.new_group()
        assert group is not None

        async def main(group: ProcessGroup = group, count: int = count, then: int = then) -> None:
            await group.broadcast(np.full(count, 1.0 + pg.rank), roots[pg.rank])
            await (group.all_reduce(np.ones(then)) if then else group.barrier())

        error = await error_of(main())
        assert isinstance(error, CollectiveMismatch), error
        assert all(f"broadcast(float64[{count}], src={root})" in str(error) for root in set(roots)), error
        await pg.barrier()


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, transport="shm")
async def test_roots_that_differed_are_told_when_the_slot_is_used_again(pg: ProcessGroup) -> None:
    group = await pg.new_group()
    assert group is not None
    await group.barrier()

    async def main() -> None:
        await group.broadcast(np.arange(6), 2 if pg.rank == 2 else 0)
        while True:
            await group.broadcast(np.arange(30), 1)

    error = await error_of(main())
    assert isinstance(error, CollectiveMismatch), error
    await pg.barrier()


class Index(int):
    """A number in the place of an op, as torch's ops are, which mean others by the same numbers."""

    def __index__(self) -> int:
        return int(self)


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_what_is_no_op_of_ours_is_refused_also_where_its_number_is_known(pg: ProcessGroup) -> None:
    ops = [op for op in ReduceOp if op < ReduceOp.BAND]
    for op in ops:
        for call in (pg.all_reduce, pg.reduce):
            await call(np.arange(4.0) + pg.rank, op=op)  # from here on the fast path knows these calls
        await pg.reduce_scatter(np.arange(4.0) + pg.rank, op=op)
    strange: list[Any] = [kind(op) for op in ops for kind in (int, np.int64, Index)]
    for op in [*strange, True, 0, False, None, "SUM"]:
        for issue in (pg.all_reduce, pg.reduce, pg.reduce_scatter):
            with pytest.raises(UsageError):
                await issue(np.arange(4.0) + pg.rank, op=op)
    tensor = np.arange(4.0) + pg.rank
    assert np.array_equal(await pg.all_reduce(tensor), np.arange(4.0) * 2 + 1)


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_a_short_all_reduce_that_differs_is_a_mismatch(pg: ProcessGroup) -> None:
    for _ in range(3):
        await pg.all_reduce(np.ones(3))
    with pytest.raises(CollectiveMismatch) as caught:
        await pg.all_reduce(np.ones(3 + pg.rank))
    assert set(caught.value.said) == {0, 1}
    assert "float64[3]" in str(caught.value)
    assert "float64[4]" in str(caught.value)


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_a_short_all_reduce_and_another_collective_are_a_mismatch(pg: ProcessGroup) -> None:
    await pg.all_reduce(np.ones(3))
    with pytest.raises(CollectiveMismatch, match="broadcast"):
        await (pg.all_reduce(np.ones(3)) if pg.rank else pg.broadcast(np.ones(3), src=1))


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_a_short_all_reduce_that_nobody_joins_times_out(pg: ProcessGroup) -> None:
    group = await pg.new_group([0, 1])
    assert group is not None
    await group.all_reduce(np.ones(2))
    group.timeout = 0.3
    if pg.rank == 0:
        with pytest.raises(CollectiveTimeout) as caught:
            await group.all_reduce(np.ones(2))
        assert caught.value.missing == (1,)
        assert (caught.value.op, caught.value.seq) == ("all_reduce", 1)
    await pg.barrier()


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_a_peer_that_closes_ends_a_short_all_reduce(pg: ProcessGroup) -> None:
    group = await pg.new_group([0, 1])
    assert group is not None
    await group.all_reduce(np.ones(2))
    if pg.rank == 0:
        with pytest.raises(GroupBroken, match="rank 1"):
            await group.all_reduce(np.ones(2))
    else:
        await group.aclose()
    await pg.barrier()


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_abort_ends_short_all_reduces(pg: ProcessGroup) -> None:
    group = await pg.new_group([0, 1])
    assert group is not None
    await group.all_reduce(np.ones(2))
    if pg.rank == 0:
        work = group.all_reduce(np.ones(2), async_op=True)
        group.abort("enough")
        with pytest.raises(GroupBroken, match="enough"):
            await work
        with pytest.raises(GroupBroken, match="enough"):
            await group.all_reduce(np.ones(2))
    await pg.barrier()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("kind", ["contiguous", "strided", "held back", "large"])
@spmd(world_size=2, transport="shm")
async def test_an_array_that_becomes_read_only_breaks_the_group(
    pg: ProcessGroup, kind: str, awaited: bool
) -> None:
    """The result cannot be written any more: the operation fails like any other, and is not left pending. A
    view of the array, which the caller has not made, may be writable still."""
    await pg.all_reduce(np.ones(3))
    tensor = np.ones(2_000_000 if kind == "large" else 6)[:: 2 if kind == "strided" else 1]
    if kind == "held back":
        async with pg.coalesce():
            work = pg.all_reduce(tensor, async_op=True)
            tensor.flags.writeable = False
    else:
        work = pg.all_reduce(tensor, async_op=True)
        tensor.flags.writeable = False
    if awaited:
        with pytest.raises(GroupBroken, match="read-only"):
            await work
    else:
        ended = asyncio.Event()
        work.add_done_callback(lambda _: ended.set())
        await ended.wait()
        assert "read-only" in str(work.exception())


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_the_fast_path_refuses_what_the_other_refuses(pg: ProcessGroup) -> None:
    tensor = np.ones(3)
    await pg.all_reduce(tensor)
    tensor.flags.writeable = False
    total = await pg.all_reduce(tensor)  # a new array: this one cannot be written
    assert total is not tensor and (total == 2 * tensor).all()
    issued = pg.issued_count()
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            pg.all_reduce(np.ones(3))
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(errors) == 1
    with pytest.raises(UsageError, match="AVG"):
        await pg.all_reduce(np.ones(3, np.int32), dist.ReduceOp.AVG)
    assert pg.issued_count() == issued  # no number was taken
    await pg.barrier()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("count", few([1, 3, 8, 9, 33, 1000], [3, 33]))
@spmd(world_size=2, transport="shm")
async def test_nans_of_a_small_all_reduce_are_the_same_on_all_ranks(pg: ProcessGroup, count: int) -> None:
    """Both operands are NaN, with other bits on each rank; the tensors lie at different alignments."""
    raw = np.zeros(count * 4 + 64, np.uint8)
    tensor = raw[4 * (1 + pg.rank * 3) :][: count * 4].view(np.float32)
    tensor.view(np.uint32)[...] = 0x7FC00000 + np.arange(count) + 1000 * (pg.rank + 1)
    await pg.all_reduce(tensor)
    seen = await pg.all_gather(tensor.view(np.uint32))
    assert np.isnan(tensor).all()
    assert (seen[0] == seen[1]).all()


@pytest.mark.parametrize("count", [1, 3, 3000, 40_000])
@spmd(world_size=2, transport="shm")
async def test_an_average_has_one_nan_where_infinities_make_one(pg: ProcessGroup, count: int) -> None:
    """A complex number is divided as by a complex one, and infinity times 0 is a NaN, of any bits."""
    for dtype in (np.complex64, np.complex128):
        tensor = np.full(count, complex(pg.rank, np.inf), dtype)
        await pg.all_reduce(tensor, op=ReduceOp.AVG)
        assert tensor.imag[0] == np.inf
        assert tensor.real.tobytes() == np.full(count, np.nan, tensor.real.dtype).tobytes()


# ── responsiveness, and what is left behind ──────────────────────────────────────────────────────────


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_a_loop_of_short_all_reduces_starves_nobody(pg: ProcessGroup) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    tensor = np.zeros(4)
    while True:
        enough = np.array([turns > 20], np.int64)
        if (await pg.all_reduce(enough, dist.ReduceOp.MIN))[0]:
            break
        await pg.all_reduce(tensor)
    task.cancel()


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, transport="shm")
async def test_groups_give_their_memory_back_when_nobody_reads_it(pg: ProcessGroup) -> None:
    """A root that leaves right after its broadcast leaves what it published to those who come later."""
    shared = hub(pg)
    after = []
    for number in range(12):
        group = await pg.new_group([0, 1, 2])
        assert group is not None
        tensor = np.full(50_000, 10 * number + pg.rank, np.int64)
        await group.broadcast(tensor, src=number % 3)
        assert (tensor == 10 * number + number % 3).all()
        await group.aclose()
        await pg.barrier()
        after.append(shared.taken())
    assert max(after[6:]) <= max(after[:6])


@pytest.mark.slow(COSTLY)
@spmd(world_size=2, transport="shm")
async def test_closing_lets_go_of_the_memory_also_where_handles_are_kept(pg: ProcessGroup) -> None:
    import os

    def held() -> int:
        names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum("memfd:aiodist" in os.readlink(name) for name in names if os.path.islink(name))

    works = [pg.all_reduce(np.ones(count), async_op=True) for count in (3, 3000, 30_000, 300_000)]
    kept = pg.empty(100)
    for work in works:
        await work
    await pg.barrier()
    assert held() >= 2
    await pg.aclose()
    assert len(works) == 4
    del kept
    gc.collect()
    assert held() == 0


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("nbytes", few([100, 100_000, 8_000_000], [100_000]))
@spmd(world_size=3, transport="shm", exits={2: -9})
async def test_a_rank_that_is_killed_ends_operations_of_any_size(pg: ProcessGroup, nbytes: int) -> None:
    import os
    import signal

    tensor = pg.empty(nbytes, np.uint8)
    tensor[...] = 1
    with pytest.raises(GroupBroken, match="rank 2"):
        for number in range(1000):
            if pg.rank == 2 and number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            await pg.all_reduce(tensor)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    "what", few(["barrier", "all_reduce", "plain all_reduce", "then abort"], ["all_reduce", "then abort"])
)
@spmd(world_size=3, transport="shm", exits={2: -9})
async def test_what_a_rank_did_before_its_end_counts(pg: ProcessGroup, what: str) -> None:
    """Whoever finds at once that a peer has done its part, and that it is gone, has the result."""
    import asyncio
    import os
    import select
    import signal

    pids: list[int] = await pg.all_gather_object(os.getpid())
    mine = np.arange(4) + pg.rank
    descriptor = os.pidfd_open(pids[2])  # before it can be through, and gone
    work: dist.Work[Any]
    if what in ("barrier", "then abort"):
        work = pg.barrier(async_op=True)
    elif what == "all_reduce":
        work = pg.all_reduce(mine[::2].T, async_op=True)
    else:
        work = pg.all_reduce(mine, async_op=True)
    if pg.rank == 2:
        await work
        if what == "then abort":
            pg.abort("enough")
        os.kill(os.getpid(), signal.SIGKILL)
    select.select([descriptor], [], [])  # the loop does not turn
    os.close(descriptor)
    ended = asyncio.Event()
    work.add_done_callback(lambda _: ended.set())
    await ended.wait()
    assert work.exception() is None
    with pytest.raises(GroupBroken, match="rank 2"):
        await pg.barrier()


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, transport="shm")
async def test_group_for_which_one_rank_has_no_room_is_broken_on_all(pg: ProcessGroup) -> None:
    mine = hub(pg)
    contexts = range(1, _ENTRIES)  # the world has one
    if pg.rank == 1:
        for context in contexts:
            mine.announce(context, 1 << 20)
    taken = mine.taken()
    said = (
        r"rank 1 has no room in shared memory for another group: more than 4096 are open\. "
        "Close groups that are done"
    )
    for _ in range(2):
        with pytest.raises(dist.GroupBroken, match=said):
            group = await pg.new_group()
            assert group is not None
            await group.barrier()
    if pg.rank == 1:
        assert mine.taken() == taken
        for context in contexts:
            mine.leave(context, lambda: True, lambda: None)
    await pg.barrier()
    group = await pg.new_group()
    assert group is not None
    assert (await group.all_reduce(np.array([pg.rank + 1])))[0] == 6
