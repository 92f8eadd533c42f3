"""Handlers run as if each call were alone: its own task and context, and whatever it raises is an answer."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster

HELD: contextvars.ContextVar[int] = contextvars.ContextVar("held", default=-1)


async def ask(server: Any, client: Any) -> None:
    """Run `server(pg)` on rank 1, and `client(pg)` on rank 0."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            server(pg)
        await pg.barrier()
        if pg.rank == 0:
            await client(pg)
        await pg.barrier()

    await run_cluster(2, main)


async def test_a_call_sees_no_context_of_another() -> None:
    def server(pg: ProcessGroup) -> None:
        @pg.handler
        def plain(value: int) -> int:
            before = HELD.get()
            HELD.set(value)
            return before

        @pg.handler
        async def later(value: int) -> tuple[int, int]:
            before = HELD.get()
            HELD.set(value)
            await asyncio.sleep(0)
            return before, HELD.get()

    async def client(pg: ProcessGroup) -> None:
        for number in range(3):  # one by one: who has answered looks for the next
            assert await pg.call(1, "later", number) == (-1, number)
            assert await pg.call(1, "plain", number) == -1
        many = await asyncio.gather(*(pg.call(1, "later", number) for number in range(40)))
        assert many == [(-1, number) for number in range(40)]
        assert await asyncio.gather(*(pg.call(1, "plain", number) for number in range(40))) == [-1] * 40

    await ask(server, client)


async def test_an_async_function_has_a_task_of_its_own() -> None:
    tasks: set[asyncio.Task[Any] | None] = set()

    def server(pg: ProcessGroup) -> None:
        @pg.handler
        async def at_once() -> None:
            tasks.add(asyncio.current_task())

        @pg.handler
        async def limited() -> str:
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                return "in time"
            return "never"

        @pg.handler
        async def stops_itself() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.Event().wait()

    async def client(pg: ProcessGroup) -> None:
        await asyncio.gather(*(pg.call(1, "at_once") for _ in range(20)))
        assert None not in tasks
        assert len(tasks) == 20
        assert await asyncio.gather(*(pg.call(1, "limited") for _ in range(5))) == ["in time"] * 5
        with pytest.raises(dist.RemoteError, match="CancelledError"):
            await pg.call(1, "stops_itself")

    await ask(server, client)


async def test_a_plain_function_may_raise_what_stops_a_task() -> None:
    def server(pg: ProcessGroup) -> None:
        @pg.handler(limit=1)
        def cancelled() -> None:
            raise asyncio.CancelledError

        @pg.handler(limit=1)
        def unsendable() -> Any:
            return object()

    async def client(pg: ProcessGroup) -> None:
        for _ in range(2):  # its place is free again
            with pytest.raises(dist.RemoteError, match="CancelledError"):
                await pg.call(1, "cancelled")
            with pytest.raises(dist.RemoteError, match="UsageError"):
                await pg.call(1, "unsendable")

    await ask(server, client)


async def test_a_plain_function_that_returns_something_to_await_counts_until_it_is_done() -> None:
    going, most = 0, 0

    def server(pg: ProcessGroup) -> None:
        @pg.handler(limit=3)
        def soon(number: int) -> Any:
            async def later() -> int:
                nonlocal going, most
                going += 1
                most = max(most, going)
                await asyncio.sleep(0)
                going -= 1
                return number

            return later()

    async def client(pg: ProcessGroup) -> None:
        assert await asyncio.gather(*(pg.call(1, "soon", n) for n in range(20))) == list(range(20))

    await ask(server, client)
    assert (going, most) == (0, 3)
