"""Messages of one sender come in the order in which they began, whatever each of them has to wait for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.services import connection, under_way
from aiodist.testing import run_cluster, run_virtual
from tests.group.services.narrow import Narrow
from tests.levels import few

END = "end"


Begin = Callable[[Any], asyncio.Task[None]]
SEEDS = pytest.mark.parametrize("seed", few(range(8), [1, 4]))


def sent(network: Narrow, send: Callable[[Begin], Awaitable[object]]) -> list[Any]:
    """What rank 1 takes while rank 0 runs `send(begin)`; `begin(message)` sends it in a task."""

    async def main(pg: ProcessGroup) -> list[Any]:
        taken = []
        if pg.rank == 0:
            tasks: list[asyncio.Task[None]] = []

            def begin(message: Any) -> asyncio.Task[None]:
                tasks.append(asyncio.create_task(pg.send_message(1, message)))
                return tasks[-1]

            await send(begin)
            await asyncio.gather(*tasks, return_exceptions=True)
            await pg.send_message(1, END)
        else:
            async for _, message in pg.messages():
                if message == END:
                    break
                taken.append(message)
        await pg.barrier()
        return taken

    return run_virtual(run_cluster(2, main, endpoint=network.endpoint))[1]


async def pause(rng: random.Random) -> None:
    """Let nothing, a turn of the loop or a moment pass."""
    drawn = rng.random()
    if drawn < 0.3:
        await asyncio.sleep(0.0 if drawn < 0.2 else rng.choice([0.0005, 0.001, 0.01]))


@SEEDS
def test_while_the_connection_is_dialed(seed: int) -> None:
    network = Narrow(random.Random(seed))

    async def send(begin: Begin) -> None:
        for number in range(400):
            begin(number)
            await pause(network.rng)

    assert sent(network, send) == list(range(400))


@SEEDS
def test_while_the_line_is_full(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It drains in the middle of what begins, again and again."""
    monkeypatch.setattr(connection, "HIGH", 8_000)
    network = Narrow(random.Random(seed), most=9_000)

    async def send(begin: Begin) -> None:
        for number in range(300):
            begin([number, bytes(number * 37 % 3000)])
            await pause(network.rng)

    assert [message[0] for message in sent(network, send)] == list(range(300))


@SEEDS
def test_while_no_more_may_be_under_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_way, "CALLS", 3)
    network = Narrow(random.Random(seed))

    async def send(begin: Begin) -> None:
        for number in range(200):
            begin(number)
            await pause(network.rng)

    assert sent(network, send) == list(range(200))


@SEEDS
def test_where_earlier_ones_are_cancelled(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they are sent, in pieces, and when they are there."""
    monkeypatch.setattr(connection, "HIGH", 20_000)
    rng = random.Random(seed)
    network = Narrow(rng, most=30_000)
    left: list[int] = []

    async def send(begin: Begin) -> None:
        tasks = []
        for number in range(150):
            tasks.append(begin([number, bytes(rng.choice([10, 10, 1000, 150_000]))]))
            await pause(rng)
            if rng.random() < 0.3:
                tasks[rng.randrange(max(0, number - 10), number + 1)].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left.extend(number for number, task in enumerate(tasks) if not task.cancelled())

    taken = [message[0] for message in sent(network, send)]
    assert taken == sorted(set(taken))
    assert set(left) <= set(taken)


@SEEDS
def test_where_the_connection_breaks_and_is_dialed_again(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HIGH", 8_000)
    monkeypatch.setattr(under_way, "CALLS", 20)
    rng = random.Random(seed)
    network = Narrow(rng, most=5_000)
    good: list[int] = []

    async def send(begin: Begin) -> None:
        tasks = []
        for number in range(300):
            tasks.append(begin([number, bytes(rng.randrange(4000))]))
            await pause(rng)
            if rng.random() < 0.02:
                network.cut(0, 1)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        good.extend(number for number, result in enumerate(results) if result is None)
        assert {type(result) for result in results} <= {type(None), dist.CallUnknown, dist.CallNotRun}

    taken = [message[0] for message in sent(network, send)]
    assert taken == sorted(set(taken))
    assert set(good) <= set(taken)


async def test_where_earlier_ones_are_encoded_in_a_thread() -> None:
    sizes = [3_000_000, 1, 2_000_000, 2, 3, 5_000_000, 4]

    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            tasks = [asyncio.create_task(pg.send_message(1, bytes(size))) for size in sizes]
            await asyncio.sleep(0)
            tasks[2].cancel()  # what comes behind it goes on
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert results[:2] == [None] * 2
            assert results[3:] == [None] * 4
            with pytest.raises(dist.UsageError):
                await asyncio.gather(
                    pg.send_message(1, [bytes(2_000_000), object()]),  # nor does one that cannot be sent
                    pg.send_message(1, b""),
                )
        else:
            taken = [len((await anext(pg.messages()))[1]) for _ in range(7)]
            assert taken == [*sizes[:2], *sizes[3:], 0]
        await pg.barrier()

    await run_cluster(2, main)


def test_calls_and_streams_are_sent_in_order_too() -> None:
    """As far as they are small: large ones let others pass."""
    begun: list[int] = []
    rng = random.Random(0)

    async def main(pg: ProcessGroup) -> None:
        @pg.handler
        def takes(number: int) -> None:
            begun.append(number)

        @pg.handler
        async def parts(number: int) -> Any:
            begun.append(number)
            yield number

        async def part(number: int) -> None:
            assert [one async for one in pg.stream(1, parts, number)] == [number]

        await pg.barrier()
        if pg.rank == 0:
            tasks = []
            for number in range(200):
                tasks.append(
                    asyncio.create_task(part(number) if number % 5 == 4 else pg.call(1, takes, number))
                )
                await pause(rng)
            await asyncio.gather(*tasks)
        await pg.barrier()

    run_virtual(run_cluster(2, main, endpoint=Narrow(rng).endpoint))
    calls = [number for number in begun if number % 5 != 4]
    assert calls == sorted(calls)
    assert sorted(begun) == list(range(200))
