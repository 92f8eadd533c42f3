"""The rules of every backend, checked through the group on all ranks.

    @spmd(world_size=3)
    async def test_my_backend(pg):
        await check_backend(pg)

Checks are chosen by the capabilities that the backend declares, never skipped silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from aiodist.backends.work import Work
from aiodist.base.errors import UsageError
from aiodist.base.types import ReduceOp, premul_sum
from aiodist.group import ProcessGroup
from aiodist.testing.issued import perform
from aiodist.testing.programs import program, same_bits


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Fail unless the block is refused by a UsageError."""
    try:
        yield
    except UsageError:
        return
    raise AssertionError(f"{what} was accepted")


async def check_backend(pg: ProcessGroup, seed: int = 0, length: int = 60) -> None:
    """Every rank of a group calls this with the same arguments.

    Args:
        pg: the group; it is usable afterwards.
        seed: of the random programs.
        length: operations in each.

    Raises:
        AssertionError: the backend is wrong; says in which operation.
    """
    await check_program(pg, seed, length)
    await check_concurrent(pg, seed + 1, length)
    await check_large(pg)
    await check_handles(pg)
    await check_messages_to_oneself(pg)
    if pg.size > 1:
        await check_messages(pg)
        if "any-source" in pg._core.carriers.capabilities:
            await check_any_source(pg)
    await check_objects(pg)
    await check_premul_sum(pg)
    await check_coalesce(pg)
    if "one-answer" in pg._core.carriers.capabilities:
        await check_one_answer(pg)
    await check_subgroups(pg)


async def check_program(pg: ProcessGroup, seed: int, length: int, big: int = 3000) -> None:
    """A random program, one operation after the other."""
    for step in program(seed, pg.size, length, big=big):
        await perform(pg, step)


async def check_concurrent(pg: ProcessGroup, seed: int, length: int) -> None:
    """A random program, all in flight at once."""
    async with asyncio.TaskGroup() as tasks:
        for step in program(seed, pg.size, length):
            tasks.create_task(perform(pg, step))


async def check_large(pg: ProcessGroup) -> None:
    """Tensors past every threshold: many fragments, and reductions off the loop."""
    for dtype, count in ((np.float32, 1_000_003), (np.float16, 300_001), (np.int64, 131_072)):
        base = np.arange(count) % 13
        mine = (base + pg.rank).astype(dtype)
        await pg.all_reduce(mine)
        expected = (base * pg.size + sum(range(pg.size))).astype(dtype)
        assert np.array_equal(mine, expected), f"all_reduce of {count} {np.dtype(dtype).name}"
    rows = await pg.all_gather(np.arange(200_003) * (pg.rank + 1))
    for rank in range(pg.size):
        assert np.array_equal(rows[rank], np.arange(200_003) * (rank + 1))
    if pg.size > 1 and pg.rank < 2:
        peer = 1 - pg.rank
        out, into = np.arange(500_000) + pg.rank, np.zeros(500_000, np.int64)
        sent = pg.send(out, peer, async_op=True)  # both at once: neither waits for the other
        await pg.recv(into, peer)
        await sent
        assert np.array_equal(into, np.arange(500_000) + peer)


async def check_handles(pg: ProcessGroup) -> None:
    """Work: numbered in the call, awaited often and by many, cancelled without harm, in any order."""
    tensors = [np.array([pg.rank + 10 * i]) for i in range(5)]
    works = [pg.all_reduce(tensor, async_op=True) for tensor in tensors]
    numbers = [work.seq for work in works]
    assert numbers == list(range(numbers[0], numbers[0] + 5)), "numbers are taken in the call"
    for i in reversed(range(5)):
        expected = sum(range(pg.size)) + 10 * i * pg.size
        assert (await works[i])[0] == expected
        assert (await works[i]) is tensors[i]
        assert works[i].done()
        assert works[i].is_success()
        assert works[i].exception() is None
    work = pg.all_reduce(np.array([pg.rank]), async_op=True)

    async def waiter(work: Work[Any]) -> Any:
        return await work

    first, second = asyncio.create_task(waiter(work)), asyncio.create_task(waiter(work))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second)[0] == sum(range(pg.size))
    results = await asyncio.gather(*[pg.all_reduce(np.array([i * (pg.rank + 1)])) for i in range(4)])
    assert [int(r[0]) for r in results] == [i * sum(range(1, pg.size + 1)) for i in range(4)]
    called: list[Work[Any]] = []
    barrier = pg.barrier(async_op=True)
    barrier.add_done_callback(called.append)
    await barrier
    await asyncio.sleep(0)
    assert called == [barrier]


async def check_messages(pg: ProcessGroup) -> None:
    """Messages match by source and tag, in order, and tags do not disturb each other."""
    right, left = (pg.rank + 1) % pg.size, (pg.rank - 1) % pg.size
    sent = [pg.send(np.array([100 * pg.rank + i]), right, tag=i % 2, async_op=True) for i in range(6)]
    for tag in (1, 0):
        for i in range(tag, 6, 2):
            into = np.zeros(1, np.int64)
            assert await pg.recv(into, left, tag=tag) == left
            assert into[0] == 100 * left + i
    await asyncio.gather(*sent)
    await pg.barrier()


async def check_messages_to_oneself(pg: ProcessGroup) -> None:
    """A rank's own messages match by tag, in order, whichever side is first, strided and in place."""
    me = pg.rank
    for count in (0, 1, 3, 50_000):
        sent = [np.arange(count, dtype=np.float64) + 100 * me + 10 * i for i in range(3)]
        into = [np.zeros((count, 2)) for _ in sent]
        tags = [0, 1, 0]
        early = pg.recv(into[0][:, 1], me, async_op=True)
        sends = [pg.send(tensor, me, tag, async_op=True) for tensor, tag in zip(sent, tags, strict=True)]
        receives = [early, *(pg.recv(into[i][:, 1], me, tags[i], async_op=True) for i in (1, 2))]
        assert await asyncio.gather(*receives) == [me] * 3
        await asyncio.gather(*sends)
        for tensor, got in zip(sent, into, strict=True):
            assert same_bits(np.ascontiguousarray(got[:, 1]), tensor)
            assert not got[:, 0].any()
    one = np.arange(5.0) + me
    work = pg.send(one, me, async_op=True)
    assert await pg.recv(one, me) == me
    await work
    assert same_bits(one, np.arange(5.0) + me)
    await pg.barrier()


async def check_any_source(pg: ProcessGroup) -> None:
    """`recv(src=None)` takes one message from each, small and large, and names the sender."""
    for count in (3, 50_000):
        if pg.rank == 0:
            heard = []
            for _ in range(pg.size - 1):
                into = np.zeros(count)
                source = await pg.recv(into, None, tag=7)
                assert np.array_equal(into, np.arange(count) + source)
                heard.append(source)
            assert sorted(heard) == list(range(1, pg.size))
        else:
            await pg.send(np.arange(count, dtype=np.float64) + pg.rank, 0, tag=7)
        await pg.barrier()


async def check_objects(pg: ProcessGroup) -> None:
    """Objects of any size, with other operations issued between, which keep their place."""
    me, everybody = pg.rank, range(pg.size)

    def thing(rank: int) -> Any:
        return {
            "rank": rank,
            "list": [rank] * (rank * 700),
            "array": np.arange(rank * 3),
            7: (None, b"x" * rank),
        }

    def is_thing(obj: Any, rank: int) -> bool:
        array = obj.pop("array")
        expected = thing(rank)
        expected.pop("array")
        return bool(obj == expected) and np.array_equal(array, np.arange(rank * 3))

    gathered = pg.all_gather_object(thing(me), async_op=True)
    between = pg.all_reduce(np.array([me]), async_op=True)
    broadcast = pg.broadcast_object(thing(me) if me == pg.size - 1 else None, pg.size - 1, async_op=True)
    assert (await between)[0] == sum(everybody)
    assert is_thing(dict(await broadcast), pg.size - 1)
    assert all(is_thing(obj, rank) for rank, obj in enumerate(await gathered))
    collected = await pg.gather_object(thing(me), 0)
    assert (collected is None) == (me != 0)
    assert collected is None or all(is_thing(obj, rank) for rank, obj in enumerate(collected))
    dealt = await pg.scatter_object([thing(rank) for rank in everybody] if me == 0 else None, 0)
    assert is_thing(dealt, me)
    if pg.size > 1:
        sent = pg.send_object(thing(me), (me + 1) % pg.size, tag=3, async_op=True)
        assert is_thing(await pg.recv_object((me - 1) % pg.size, tag=3), (me - 1) % pg.size)
        await sent
        await pg.barrier()


async def check_premul_sum(pg: ProcessGroup) -> None:
    """Each rank's own factor, before the sum."""
    mine = np.arange(6.0) * (pg.rank + 1)
    await pg.all_reduce(mine, premul_sum(0.5 * (pg.rank + 1)))
    assert np.array_equal(mine, np.arange(6.0) * sum(0.5 * (rank + 1) ** 2 for rank in range(pg.size)))
    kept = np.ones(3, np.float32) * pg.rank
    result = await pg.reduce(kept, 0, premul_sum(2.0))
    assert result is None or np.array_equal(result, np.ones(3) * 2 * sum(range(pg.size)))
    assert pg.rank == 0 or np.array_equal(kept, np.ones(3) * pg.rank)


async def check_coalesce(pg: ProcessGroup) -> None:
    """A batch is numbered in the calls, starts when the block is left, and cannot be awaited inside."""
    tensors = [np.array([pg.rank + i]) for i in range(4)]
    async with pg.coalesce() as batch:
        works = [pg.all_reduce(tensor, async_op=True) for tensor in tensors]
        assert [work.seq - works[0].seq for work in works] == [0, 1, 2, 3]
        assert not any(work.done() for work in works)
        with refused("an await inside coalesce()"):
            await works[0]
    assert batch.works == works
    for i, work in enumerate(works):
        assert (await work)[0] == sum(range(pg.size)) + i * pg.size


async def check_one_answer(pg: ProcessGroup) -> None:
    """All ranks get the same bits, also where the order of additions matters (law 3)."""
    for count in (1, 3, 5, 64, 77, 5_000, 400_000):
        rng = np.random.default_rng(pg.rank)
        # Each rank's tensor is aligned in its own way, and has NaNs that differ in payload and sign: NumPy's
        # choice between two NaNs depends on where vector instructions begin.
        mine = np.empty(count + pg.rank, np.float32)[pg.rank :]
        mine[:] = rng.standard_normal(count) * 10.0 ** rng.integers(-8, 8, count)
        nans = mine.view(np.uint32)[::3]
        nans[:] = 0x7FC00001 + rng.integers(0, 1 << 20, nans.size) + (rng.integers(0, 2, nans.size) << 31)
        await pg.all_reduce(mine)
        rows = await pg.all_gather(mine)
        for rank in range(pg.size):
            assert same_bits(rows[rank], mine), f"ranks {pg.rank} and {rank} have different bits"


async def check_subgroups(pg: ProcessGroup) -> None:
    """Groups of groups: each has numbers of its own, and what is issued in one does not touch another."""
    evens = await pg.new_group(range(0, pg.size, 2))
    everybody = await pg.new_group()
    assert everybody is not None
    assert (evens is None) == bool(pg.rank % 2)
    both = everybody.all_reduce(np.array([pg.rank]), async_op=True)
    if evens is not None:
        assert evens.ranks == tuple(pg.ranks[r] for r in range(0, pg.size, 2))
        assert (await evens.all_reduce(np.array([pg.rank + 1]), ReduceOp.MAX))[0] == 2 * (evens.size - 1) + 1
    assert (await both)[0] == sum(range(pg.size))
    halves = await pg.split(pg.rank % 2, key=-pg.rank)
    assert halves is not None
    assert halves.ranks == tuple(pg.ranks[r] for r in reversed(range(pg.rank % 2, pg.size, 2)))
    assert [int(row[0]) for row in await halves.all_gather(np.array([pg.ranks[pg.rank]]))] == list(
        halves.ranks
    )
    none = await pg.split(None if pg.rank == 0 else 1)
    assert (none is None) == (pg.rank == 0)
    for group in (evens, everybody, halves, none):
        if group is not None:
            await group.aclose()
    await pg.barrier()
