"""Handlers run as if each call were alone: its own task and context, and whatever it raises is an answer."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from tests.helpers import services_of

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


async def test_a_task_that_has_answered_is_gone_without_the_collector() -> None:
    """Its context holds the call, so the call must not hold the task."""
    tasks: list[weakref.ref[Any]] = []

    def server(pg: ProcessGroup) -> None:
        @pg.handler
        async def at_once() -> None:
            tasks.append(weakref.ref(asyncio.current_task()))

        @pg.handler
        async def later(value: Any) -> Any:
            tasks.append(weakref.ref(asyncio.current_task()))
            await asyncio.sleep(0)
            return value

    async def client(pg: ProcessGroup) -> None:
        gc.disable()
        try:
            await asyncio.gather(*(pg.call(1, "at_once") for _ in range(20)))
            await asyncio.gather(*(pg.call(1, "later", value) for value in (1, (2,), {3: "x" * 20_000})))
            await pg.barrier()
            assert len(tasks) == 23
            assert [one() for one in tasks if one() is not None] == []
        finally:
            gc.enable()

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            server(pg)
        await pg.barrier()
        await (client(pg) if pg.rank == 0 else pg.barrier())

    await run_cluster(2, main)


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


class Own(BaseException):
    """A program's own, which is no Exception."""


class Mute(BaseException):
    """One whose text cannot be made."""

    def __str__(self) -> str:
        raise Own


@dataclass
class Wrong:
    """Its own methods raise: what makes one of an argument does."""

    number: int

    def __post_init__(self) -> None:
        raise Own("while it is made")


class Strange:
    """A result of which nothing can be asked."""

    def __getattr__(self, name: str) -> Any:
        raise Own(name)

    def __repr__(self) -> str:
        raise Own

    def __reduce__(self) -> Any:
        raise Own


RAISED: dict[str, Callable[[], BaseException]] = {
    "test_running.Own": lambda: Own("text"),
    "test_running.Mute": Mute,
    "GeneratorExit": GeneratorExit,
    "BaseException": BaseException,
    "asyncio.exceptions.CancelledError": asyncio.CancelledError,
    "Failed": lambda: pytest.fail.Exception("of a test"),
    "StopIteration": lambda: StopIteration(3),
    "StopAsyncIteration": StopAsyncIteration,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("two", [Own(), ValueError()]),
}


@pytest.mark.parametrize("raised", RAISED)
async def test_whatever_a_handler_raises_is_answered_and_its_place_is_free(
    raised: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls that came with it are answered, too."""
    make = RAISED[raised]

    def server(pg: ProcessGroup) -> None:
        @pg.handler(limit=1)
        def plain() -> None:
            raise make()

        @pg.handler(limit=1)
        async def at_once() -> None:
            raise make()

        @pg.handler(limit=1)
        async def later() -> None:
            await asyncio.sleep(0)
            raise make()

        @pg.handler(limit=1)
        async def when_stopped() -> None:
            try:
                await asyncio.sleep(0)
                asyncio.current_task().cancel()  # type: ignore[union-attr]
                await asyncio.sleep(1000)
            finally:
                raise make()

        @pg.handler(limit=1)
        def soon() -> Any:
            return later()

        @pg.handler(limit=1)
        async def takes(data: bytes) -> None:
            raise make()

        @pg.handler(limit=1)
        async def parts(count: int) -> AsyncIterator[int]:
            for number in range(count):
                yield number
            raise make()

        pg.handler(lambda number: number, name="quick")

    async def client(pg: ProcessGroup) -> None:
        for name in ("plain", "at_once", "later", "when_stopped", "soon", "takes"):
            args = [bytes(2 << 20)] if name == "takes" else []
            for _ in range(2):
                beside = [asyncio.create_task(pg.call(1, "quick", number)) for number in range(5)]
                failing = asyncio.create_task(pg.call(1, name, *args))
                beside += [asyncio.create_task(pg.call(1, "quick", number)) for number in range(5, 10)]
                with pytest.raises(dist.RemoteError) as caught:
                    await failing
                assert await asyncio.gather(*beside) == list(range(10))
                if not raised.startswith("Stop"):  # which Python makes a RuntimeError of
                    assert caught.value.type_name.endswith(raised)
        for count in (0, 2):
            stream = pg.stream(1, "parts", count)
            assert [await anext(stream) for _ in range(count)] == list(range(count))
            with pytest.raises(dist.RemoteError):
                await anext(stream)
        services = services_of(pg)
        assert services.overview.at(0.0)["asked"] == 0

    await ask(server, client)


async def test_values_whose_own_methods_raise() -> None:
    def server(pg: ProcessGroup) -> None:
        @pg.handler(limit=1)
        def plain(value: Wrong) -> None:
            raise AssertionError("it has no argument")

        @pg.handler(limit=1)
        async def later(value: Wrong) -> None:
            raise AssertionError("it has no argument")

        @pg.handler(limit=1)
        def strange() -> Any:
            return Strange()

        @pg.handler(limit=1)
        async def strange_later() -> Any:
            return [Strange()]

        @pg.handler(limit=1)
        async def strange_parts() -> AsyncIterator[Any]:
            yield 1
            yield Strange()

    async def client(pg: ProcessGroup) -> None:
        for _ in range(2):
            for name in ("plain", "later"):
                with pytest.raises(dist.CallNotRun, match=r"cannot be read: .*Own: while it is made"):
                    await pg.call(1, name, {"number": 3})
            for name in ("strange", "strange_later"):
                with pytest.raises(dist.RemoteError):
                    await pg.call(1, name)
            with pytest.raises(dist.RemoteError):
                [part async for part in pg.stream(1, "strange_parts")]

    await ask(server, client)
