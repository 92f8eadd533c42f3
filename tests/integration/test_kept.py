"""What a broken epoch, or a group that never came about, leaves behind: nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import spmd
from tests.helpers import error_of, host_of, memory_mapped
from tests.levels import COSTLY, MORE, few


async def break_it(pg: ProcessGroup) -> None:
    """Rank 0 aborts once all others have begun what they will fail in."""
    if pg.rank:
        await pg.send(np.zeros(1), 0, tag=99)
        return
    for other in range(1, pg.size):
        await pg.recv(np.zeros(1), other, tag=99)
    pg.abort("enough")


def in_flight(pg: ProcessGroup, kind: str, refs: list[weakref.ref[Any]]) -> list[Any]:
    """Start what rank 0 takes no part in."""
    works: list[Any] = []
    for tag in range(3):
        tensor = pg.empty(200_000) if kind == "empty" else np.empty(200_000)
        tensor[...] = np.arange(200_000) + pg.rank * 1000 + tag
        if kind == "quick":
            tensor = tensor[:100].copy()
        refs.append(weakref.ref(tensor))
        if kind == "send":
            works.append(pg.send(tensor, 0, tag=tag, async_op=True))
        elif kind in ("recv", "empty"):
            works.append(pg.recv(tensor, 0, tag=tag, async_op=True))
        elif kind == "any source":
            works.append(pg.recv(tensor, tag=tag, async_op=True))
        else:
            works.append(pg.all_reduce(tensor, async_op=True))
    return works


CASES = [
    ("all_reduce", "tcp"),
    ("all_reduce", "shm"),
    ("quick", "shm"),
    ("recv", "tcp"),
    ("recv", "shm"),
    ("any source", "shm"),
    ("send", "tcp"),
    ("empty", "shm"),
]


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    ("kind", "transport"), few(CASES, CASES[2:4]), ids=[" ".join(case) for case in CASES]
)
@spmd(world_size=3)
async def test_arrays_in_flight_at_a_break_are_freed(pg: ProcessGroup, kind: str, transport: str) -> None:
    uid, maps = pg.rank, memory_mapped()
    refs: list[weakref.ref[Any]] = []
    groups: list[weakref.ref[Any]] = []
    for epoch in range(2):
        works = in_flight(pg, kind, refs) if uid else []
        await break_it(pg)
        for work in works:
            assert isinstance(await error_of(work), dist.GroupBroken)
        works = work = None  # type: ignore[assignment]
        groups.append(weakref.ref(pg))
        pg = await pg.rebuild()
        await pg.barrier()
        gc.collect()
        assert [ref() is None for ref in refs] == [True] * len(refs), epoch
    del groups[0]  # `async with` holds it
    while any(ref() for ref in groups) or (kind == "empty" and memory_mapped() != maps):
        await asyncio.sleep(0.01)  # they end in the background
        gc.collect()


@pytest.mark.slow(MORE)
@pytest.mark.parametrize("kind", ["all_reduce", "recv"])
@spmd(world_size=4, hosts=2)
async def test_arrays_in_flight_between_hosts_are_freed(pg: ProcessGroup, kind: str) -> None:
    refs: list[weakref.ref[Any]] = []
    works = in_flight(pg, kind, refs) if pg.rank else []
    await break_it(pg)
    for work in works:
        assert isinstance(await error_of(work), dist.GroupBroken)
    works = work = None  # type: ignore[assignment]
    pg = await pg.rebuild()
    await pg.barrier()
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@spmd(world_size=2)
async def test_a_broken_group_that_is_still_held_keeps_no_arrays(pg: ProcessGroup, transport: str) -> None:
    group = await pg.new_group()
    assert group is not None
    refs: list[weakref.ref[Any]] = []
    works = in_flight(group, "recv", refs) + in_flight(group, "all_reduce", refs) if pg.rank else []
    await break_it(group)
    for work in works:
        assert isinstance(await error_of(work), dist.GroupBroken)
    works = work = None  # type: ignore[assignment]
    await group.aclose()
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
    await pg.barrier()


@spmd(world_size=2, transport="shm")
async def test_a_broken_group_that_is_not_closed_keeps_no_arrays(pg: ProcessGroup) -> None:
    """Calls like those that fail were made before: what is kept for the next one keeps no arrays."""
    counts = (3, 3000, 30_000, 400_000)  # in a slot, staged, in two phases, in the thread
    group = await pg.new_group()
    assert group is not None
    for count in counts:
        await group.all_reduce(np.ones(count))
    await pg.barrier()
    refs: list[weakref.ref[Any]] = []
    if pg.rank == 0:
        works = []
        for count in counts:
            array = np.ones(count)
            refs.append(weakref.ref(array))
            works.append(group.all_reduce(array, async_op=True))
        del array
        group.abort("enough")
        for work in works:
            assert isinstance(await error_of(work), dist.GroupBroken)
        del works, work
        gc.collect()
        assert [ref() for ref in refs] == [None] * len(refs)
    await pg.barrier()
    await group.aclose()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@spmd(world_size=2)
async def test_what_messages_carried_is_given_up_when_it_has_ended(pg: ProcessGroup, transport: str) -> None:
    """An all_to_all whose parts differ, over and over. Handles keep results, and nothing else."""
    give, get = ([1000, 2000], [1000, 3000]) if pg.rank == 0 else ([3000, 4000], [2000, 4000])
    refs: list[weakref.ref[Any]] = []
    works = []
    for turn in range(6):
        source = np.arange(sum(give)) + pg.rank * 100 + turn
        refs.append(weakref.ref(source))
        works.append(pg.all_to_all(source, None, give, get, async_op=True))
        del source
        await works[-1]
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
    results = [weakref.ref(work.result()) for work in works]
    del works
    gc.collect()
    assert [ref() for ref in results] == [None] * len(results)
    await pg.barrier()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("how", ["new_group", "split"])
@spmd(world_size=3, transport="shm")
async def test_memory_of_a_group_that_a_member_never_made_is_freed(pg: ProcessGroup, how: str) -> None:
    hub: Any = host_of(pg).resources.hub
    others = [rank for rank in range(3) if rank != pg.rank]
    works: list[Any] = [pg.send(np.zeros(1), other, async_op=True) for other in others]
    works += [pg.recv(np.zeros(1), other, async_op=True) for other in others]
    for work in works:
        await work  # from now on each pair has its ring
    before = hub.taken()
    for turn in range(6):
        odd = turn % 3
        if pg.rank == odd:
            making = asyncio.ensure_future(pg.split(turn) if how == "split" else pg.new_group())
            await asyncio.sleep(0)
            making.cancel()
            await asyncio.wait([making])
            assert making.cancelled()
            for other in {0, 1, 2} - {odd}:
                await pg.send(np.zeros(1), other)
        else:
            await pg.recv(np.zeros(1), odd)
            group = await (pg.split(turn) if how == "split" else pg.new_group())
            assert group is not None
            error = await error_of(group.barrier())
            assert isinstance(error, dist.GroupAborted)
            assert error.rank == odd
            await group.aclose()
        await pg.barrier()
    hub._clear_away(len(hub._left_groups))
    found = hub.taken() - before, len(hub._left_groups)
    await pg.barrier()  # who closes gives rings back
    assert found == (0, 0), found
