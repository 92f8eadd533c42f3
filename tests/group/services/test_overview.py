"""What is under way at a process's services, and the error where too much is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from tests.helpers import services_of


def overview(pg: ProcessGroup) -> dict[str, Any]:
    return services_of(pg).overview.at(asyncio.get_running_loop().time())


def test_calls_without_an_answer_and_who_waits_for_a_place() -> None:
    async def main(pg: ProcessGroup) -> None:
        @pg.handler(limit=2)
        async def waits() -> None:
            await asyncio.Event().wait()

        await pg.barrier()
        calls: list[asyncio.Task[Any]] = []
        if pg.rank == 0:
            assert overview(pg) == {"asked": 0, "served": 0, "to": [], "room": [], "full": [], "within": []}
            calls = [asyncio.create_task(pg.call(1, waits, timeout=50)) for _ in range(5)]
        await asyncio.sleep(1)
        began = overview(pg)
        await asyncio.sleep(5)
        later = overview(pg)
        if pg.rank == 0:
            (call,) = later["to"]
            assert (later["asked"], later["served"]) == (5, 0)
            assert (call[0], call[1], call[3]) == (1, "waits", 5)
            assert call[2] == began["to"][0][2], "it was seen then first"
        else:
            (full,) = later["full"]
            assert (later["asked"], later["served"]) == (0, 5)
            assert (full[0], full[2]) == ("waits", 3)
        for one in calls:
            one.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await pg.barrier()

    run_virtual(run_cluster(2, main))


def test_calls_that_running_handlers_have_asked() -> None:
    async def main(pg: ProcessGroup) -> None:
        left: list[asyncio.Task[Any]] = []

        @pg.handler
        async def waits() -> None:
            await asyncio.Event().wait()

        @pg.handler
        async def asks() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pg.call(0, waits, timeout=50))

        @pg.handler
        async def leaves() -> None:
            left.append(asyncio.create_task(pg.call(0, waits, timeout=50)))

        await pg.barrier()
        calls: list[asyncio.Task[Any]] = []
        if pg.rank == 0:
            await pg.call(1, leaves)
            calls = [asyncio.create_task(pg.call(1, asks, timeout=50)) for _ in range(2)]
        await asyncio.sleep(1)
        told = overview(pg)
        if pg.rank == 0:
            assert told["within"] == [] and told["asked"] == 2
        else:
            (to,), (within,) = told["to"], told["within"]
            assert (to[:2], to[3]) == ([0, "waits"], 3), "that of a handler that has ended, too"
            assert (within[:3], within[4]) == (["asks", 0, "waits"], 2)
        await pg.barrier()
        for one in (*calls, *left):
            one.cancel()
        await asyncio.gather(*calls, *left, return_exceptions=True)
        await pg.barrier()

    run_virtual(run_cluster(2, main))


def test_a_call_beyond_256_says_why_it_was_not_sent() -> None:
    async def main(pg: ProcessGroup) -> None:
        @pg.handler
        async def waits() -> None:
            await asyncio.Event().wait()

        await pg.barrier()
        if pg.rank == 0:
            calls = [asyncio.create_task(pg.call(1, waits, timeout=50)) for _ in range(256)]
            await asyncio.sleep(1)
            more = asyncio.create_task(pg.call(1, waits, timeout=20))
            await asyncio.sleep(1)
            [[rank, since, count]] = overview(pg)["room"]
            assert (rank, count) == (1, 1) and since <= asyncio.get_running_loop().time()
            with pytest.raises(dist.CallTooLate, match="256 earlier calls of this process") as caught:
                await more
            assert "shorter timeout" in caught.value.hint
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        await pg.barrier()

    run_virtual(run_cluster(2, main))


def test_calls_that_others_pass_do_not_grow_old() -> None:
    """A service that is busy without a break: always somebody waits, and nobody for long."""

    async def main(pg: ProcessGroup) -> None:
        @pg.handler(limit=1)
        async def takes() -> None:
            await asyncio.sleep(1)

        async def asks() -> None:
            while not over:
                await pg.call(1, takes)

        await pg.barrier()
        over: list[int] = []
        calls = [asyncio.create_task(asks()) for _ in range(3)] if pg.rank == 0 else []
        for _ in range(20):
            await asyncio.sleep(1.3)
            now = asyncio.get_running_loop().time()
            told = overview(pg)
            if pg.rank:
                assert told["full"][0][2] == 2
            assert all(now - since <= 4 for _, _, since, _ in told["to"])
            assert all(now - since <= 4 for _, since, _ in told["full"])
        over.append(1)
        await asyncio.gather(*calls)
        await pg.barrier()

    run_virtual(run_cluster(2, main))
