"""Values that hold themselves, or the same parts again and again: refused wherever they are passed, at once.

`visits` ends a look at a value that has no bound, so none of these tests can hang for lack of one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import pytest

from aiodist.base.errors import RemoteError, UsageError
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from tests.levels import COSTLY
from tests.programs.values import Pair, Verdict, arrived, form, odd, verdict, visits


def cyclic_dataclass() -> Any:
    """As a parent and its child have each other."""
    pair = Pair(Pair())
    pair.left.right = pair
    return pair


def cyclic_list() -> Any:
    """A list in itself."""
    one: list[Any] = [1]
    one.append({"again": (one,)})
    return one


def doubled_dataclasses() -> Any:
    """2**64 of them, of which 65 are different."""
    pair = Pair()
    for _ in range(64):
        pair = Pair(pair, pair)
    return pair


def doubled_tuples() -> Any:
    """2**64 of them, likewise."""
    one: Any = ()
    for _ in range(64):
        one = (one, one)
    return one


def deep() -> Any:
    """Lists in lists, without a cycle."""
    one: Any = []
    for _ in range(5000):
        one = [one]
    return one


MAKES = (cyclic_dataclass, cyclic_list, doubled_dataclasses, doubled_tuples, deep)
VALUES = {make.__name__: make for make in MAKES}
WHY = r"contains itself|so often|over 100 deep"

Send = Callable[[ProcessGroup, Any], Awaitable[Any]]


async def call(pg: ProcessGroup, value: Any) -> Any:
    """As an argument."""
    return await pg.call(1, "echo", value, timeout=30)


async def message(pg: ProcessGroup, value: Any) -> None:
    """Into a mailbox."""
    await pg.send_message(1, value)


async def stream(pg: ProcessGroup, value: Any) -> Any:
    """As an argument of a stream."""
    return [part async for part in pg.stream(1, "parts", value)]


OBJECTS: dict[str, Send] = {
    "send_object": lambda pg, value: pg.send_object(value, 1),
    "all_gather_object": lambda pg, value: pg.all_gather_object(value),
    "gather_object": lambda pg, value: pg.gather_object(value, 1),
    "broadcast_object": lambda pg, value: pg.broadcast_object(value, 0),
    "scatter_object": lambda pg, value: pg.scatter_object([value, value], 0),
}
SERVICES: dict[str, Send] = {"call": call, "message": message, "stream": stream}


def serve(pg: ProcessGroup) -> None:
    """Register what the tests call."""

    @pg.handler
    async def echo(value: Any) -> Any:
        return value

    @pg.handler
    async def parts(value: Any) -> AsyncIterator[Any]:
        yield value

    @pg.handler
    async def give(name: str) -> Any:
        return VALUES[name]()

    @pg.handler
    def give_at_once(name: str) -> Any:
        return VALUES[name]()

    @pg.handler
    async def give_parts(name: str) -> AsyncIterator[Any]:
        yield 1
        yield VALUES[name]()


async def pair(client: Callable[[ProcessGroup], Awaitable[Any]]) -> None:
    """Run a client on rank 0, beside rank 1, which serves; the group works to the end."""

    async def main(pg: ProcessGroup) -> None:
        serve(pg)
        await pg.barrier()
        if pg.rank == 0:
            await client(pg)
            assert await pg.call(1, "echo", "still") == "still"
        assert await pg.all_gather_object(pg.rank) == [0, 1]

    await run_cluster(2, main)


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("send", [*SERVICES.values(), *OBJECTS.values()], ids=[*SERVICES, *OBJECTS])
async def test_it_is_refused_before_anything_is_sent(send: Send, make: Callable[[], Any]) -> None:
    async def client(pg: ProcessGroup) -> None:
        value = [make()] if make is cyclic_list else make()
        with (
            visits(),
            pytest.raises(UsageError, match=f"{WHY}|of type") as refused,
        ):
            await send(pg, value)
        assert "\n" not in str(refused.value)

    await pair(client)


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
async def test_a_handler_that_returns_it_is_answered_for(make: Callable[[], Any]) -> None:
    name = make.__name__

    async def client(pg: ProcessGroup) -> None:
        for handler in ("give", "give_at_once"):
            with visits(), pytest.raises(RemoteError, match=WHY):
                await pg.call(1, handler, name, timeout=30)
        parts = pg.stream(1, "give_parts", name)
        assert await anext(parts) == 1
        with visits(), pytest.raises(RemoteError, match=WHY):
            await anext(parts)

    await pair(client)


@pytest.mark.slow(COSTLY)
async def test_odd_values_arrive_or_are_refused() -> None:
    """One after the other through the same group, by all ways in turn: none disturbs the next."""

    async def client(pg: ProcessGroup) -> None:
        for seed in range(120):
            value = odd(Random(seed))
            expected = verdict(value)
            try:
                with visits():
                    back = await pg.call(1, "echo", value, timeout=30)
            except UsageError:
                assert expected is not Verdict.sent, seed
            else:
                assert expected is not Verdict.refused, seed
                assert form(back) == form(arrived(value)), seed

    await pair(client)
