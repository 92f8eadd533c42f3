"""Calls that fit are sent, whatever makes room for them, and no healthy process is said to be busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.services import connection, under_way
from aiodist.testing import run_cluster, run_virtual
from tests.group.services.narrow import Narrow


def crowd(
    client: Callable[[ProcessGroup, Narrow], Any], monkeypatch: pytest.MonkeyPatch, **limits: int
) -> None:
    """Run `client(pg, network)` on rank 0, where little is under way at once."""
    for name, limit in limits.items():
        monkeypatch.setattr(connection if name == "HIGH" else under_way, name, limit)
    network = Narrow(most=100_000)

    async def main(pg: ProcessGroup) -> None:
        @pg.handler
        async def slow(data: bytes) -> None:
            await asyncio.sleep(20)

        @pg.handler
        def quick(number: int) -> int:
            return number

        await pg.barrier()
        if pg.rank == 0:
            assert await pg.call(1, quick, 5) == 5
            await client(pg, network)
        await pg.barrier()

    run_virtual(run_cluster(2, main, endpoint=network.endpoint, timeout=100.0))


async def quick_ones(pg: ProcessGroup, count: int = 9) -> None:
    """Quick calls, all of which fit beside those that are under way."""
    calls = (pg.call(1, "quick", number, timeout=8) for number in range(count))
    assert await asyncio.gather(*calls) == list(range(count))


def begin(pg: ProcessGroup, count: int, nbytes: int, timeout: float = 30.0) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(pg.call(1, "slow", bytes(nbytes), timeout=timeout)) for _ in range(count)]


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_all_go_when_the_line_has_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    async def client(pg: ProcessGroup, network: Narrow) -> None:
        network.block(1, 1.0)
        tasks = begin(pg, 40, 3_000)
        await asyncio.sleep(0.1)
        await quick_ones(pg)
        await end(tasks)

    crowd(client, monkeypatch, HIGH=60_000)


@pytest.mark.parametrize("how", ["cancelled", "late"])
def test_all_go_when_the_first_one_that_waits_goes_away(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was too large to be beside the others; those behind it are not."""

    async def client(pg: ProcessGroup, network: Narrow) -> None:
        tasks = begin(pg, 1, 70_000)
        await asyncio.sleep(0.1)
        large = begin(pg, 1, 60_000, 2.0 if how == "late" else 30.0)
        await asyncio.sleep(0.1)
        tasks += begin(pg, 3, 10)  # they have no answer that would let others go
        quick = asyncio.create_task(quick_ones(pg))
        await asyncio.sleep(0.1)
        assert not quick.done()
        if how == "cancelled":
            large[0].cancel()
        else:
            with pytest.raises(dist.CallTooLate):
                await large[0]
        await quick
        await end([*tasks, *large])

    crowd(client, monkeypatch, WINDOW=100_000)


def test_all_go_when_one_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """One large call is answered, and many small ones have its place."""

    async def client(pg: ProcessGroup, network: Narrow) -> None:
        tasks = begin(pg, 2, 49_000)
        await asyncio.sleep(0.1)
        quick = asyncio.create_task(quick_ones(pg))
        small = begin(pg, 20, 2_000, 8.0)  # they wait behind the quick ones, if at all
        await asyncio.sleep(0.1)
        tasks[0].cancel()
        await quick
        await asyncio.sleep(0.1)
        await end([*tasks, *small])

    crowd(client, monkeypatch, WINDOW=100_000)


def test_who_is_late_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def client(pg: ProcessGroup, network: Narrow) -> None:
        tasks = begin(pg, 3, 10)
        await asyncio.sleep(0.1)
        with pytest.raises(dist.CallTooLate, match="3 earlier calls of this process to it have no answer"):
            await pg.call(1, "quick", 1, timeout=2)
        stream = pg.stream(1, "parts", timeout=2)
        with pytest.raises(dist.CallTooLate, match="3 earlier calls"):
            await anext(stream)
        await end(tasks)

    crowd(client, monkeypatch, CALLS=3)


def test_who_is_late_behind_a_large_one_of_its_own_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def client(pg: ProcessGroup, network: Narrow) -> None:
        tasks = begin(pg, 1, 70_000)
        await asyncio.sleep(0.1)
        tasks += begin(pg, 1, 60_000)
        await asyncio.sleep(0.1)
        with pytest.raises(dist.CallTooLate, match="1 earlier calls of this process") as late:
            await pg.call(1, "quick", 1, timeout=2)
        assert "busy" not in str(late.value)
        await end(tasks)

    crowd(client, monkeypatch, WINDOW=100_000)
