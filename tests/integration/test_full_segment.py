"""Shared memory that is full of arrays of `pg.empty`, under a limit of address space: operations go on."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import pytest

import aiodist as dist
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.errors import UsageError
from aiodist.base.types import Kind
from aiodist.group import ProcessGroup
from aiodist.testing import check_backend, run_cluster
from aiodist.testing.outcome import check
from aiodist.testing.ranks import launch
from aiodist.transport import SocketEndpoint
from tests.levels import MORE, few

LIMIT = 2 << 30
"""Bytes of address space of a process; its segment has 32 MiB."""


def take_all(pg: ProcessGroup, least: int = 64) -> list[Any]:
    """Arrays until there is no room for another one of so many bytes."""
    kept, nbytes = [], 8 << 20
    while nbytes >= least:
        try:
            kept.append(pg.empty(nbytes, np.uint8))
        except UsageError:
            nbytes //= 2
    return kept


async def check_operations(pg: ProcessGroup, groups: list[ProcessGroup], count: int) -> None:
    """Many of all kinds at once, in several groups, whose order differs between ranks."""
    everybody = np.arange(pg.size)
    rng = np.random.default_rng(pg.rank)

    async def one(group: ProcessGroup, number: int) -> None:
        salt = number * 3
        mine = np.arange(count) % 1000 + pg.rank + salt
        total = (np.arange(count) % 1000 + salt) * pg.size + everybody.sum()
        kind = (Kind.all_reduce, Kind.broadcast, Kind.all_to_all, Kind.all_gather)[number % 4]
        if kind is Kind.all_reduce:
            assert np.array_equal(await group.all_reduce(mine), total)
        elif kind is Kind.broadcast:
            await group.broadcast(mine, src=number % pg.size)
            assert np.array_equal(mine, np.arange(count) % 1000 + number % pg.size + salt)
        elif kind is Kind.all_gather:
            rows = await group.all_gather(mine)
            assert all(np.array_equal(row, mine - pg.rank + rank) for rank, row in enumerate(rows))
        else:
            parts = np.repeat(mine[None], pg.size, 0) + 10_000 * everybody[:, None]
            rows = await group.all_to_all(parts)
            assert all(
                np.array_equal(row, mine - pg.rank + rank + 10_000 * pg.rank) for rank, row in enumerate(rows)
            )

    async with asyncio.TaskGroup() as tasks:
        for place in rng.permutation(len(groups)):
            for number in range(12):
                tasks.create_task(one(groups[place], number))


async def main() -> None:
    """On every rank."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    async with await dist.init_process_group(timeout=60) as pg:
        groups = [pg, *[group for group in [await pg.new_group() for _ in range(3)] if group is not None]]
        with pytest.raises(UsageError, match=r"no room for .* bytes in shared memory.*Drop arrays"):
            pg.empty(1 << 30, np.uint8)
        kept = take_all(pg)
        assert sum(array.nbytes for array in kept) > 8 << 20
        issued = pg.issued_count()
        for count in (3, 3000, 30_000, 500_000):
            for group in groups:
                assert np.array_equal(
                    await group.all_reduce(np.full(count, pg.rank)), np.full(count, pg.size - 1)
                )
            await check_operations(pg, groups, count)
        assert pg.issued_count() == issued + 4 * 13
        kept[0][...] = pg.rank + 1
        assert (await pg.all_reduce(kept[0]) == 3).all()
        kept.clear()
        assert pg.empty(8 << 20, np.uint8).nbytes == 8 << 20
        await pg.barrier()


@pytest.mark.slow(MORE)
def test_operations_go_on_where_users_have_taken_all() -> None:
    check(asyncio.run(launch([__file__], 2, timeout=120, env={"AIODIST_TRANSPORT": "shm"})), {})


@pytest.mark.parametrize("hosts", few(["aaa", "aabb"], ["aaa"]))
async def test_conformance_with_a_home_that_is_full(hosts: str) -> None:
    """On one host and over several, whose temporaries are ordinary memory then."""
    limits = Thresholds(hierarchy=1, direct=64, inline=512, block=4096, staging=4096, depth=2)
    loop = asyncio.get_running_loop()

    def endpoint(rank: int) -> SocketEndpoint:
        return SocketEndpoint(loop, rank, "job", b"", boot=hosts[rank], segment_nbytes=24 << 20)

    async def run(pg: ProcessGroup) -> None:
        groups = [await pg.new_group() for _ in range(4)]
        kept = take_all(pg, 1 << 20)  # the programs make small ones of their own
        assert len(kept) > 2
        await check_backend(pg, seed=pg.size, length=30)
        await check_operations(pg, [group for group in groups if group is not None], 20_000)
        assert kept

    await run_cluster(len(hosts), run, endpoint=endpoint, limits=limits)


if __name__ == "__main__":
    dist.run(main())
