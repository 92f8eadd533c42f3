"""Calls between real processes: a death fails calls to the dead alone, other pairs live through a rebuild."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.testing.spmd import spmd
from tests.levels import COSTLY, few


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("transport", few(["shm", "tcp"], ["tcp"]))
@spmd(world_size=3, exits={2: -9})
async def test_a_death_fails_calls_to_the_dead_alone(pg: ProcessGroup, transport: str) -> None:
    go = asyncio.Event()

    @pg.handler
    async def waits(number: int) -> int:
        await pg.send_message(0, number)
        await go.wait()
        return number

    @pg.handler(name="go")
    def release() -> None:
        go.set()

    pg.handler(die)
    pg.handler(lambda: [pg.rank, os.getpid()], name="who")
    if pg.rank == 0:
        waiting = [asyncio.create_task(pg.call(rank, waits, 10 + rank)) for rank in (1, 2)]
        begun = [await anext(pg.messages()) for _ in range(2)]
        assert sorted(begun) == [(1, 11), (2, 12)]
        _, pid = await pg.call(1, "who")
        with pytest.raises(dist.CallUnknown) as caught:  # it has run, for all that is known
            await pg.call(2, die)
        assert isinstance(caught.value.__cause__, dist.PeerLost)
        with pytest.raises(dist.CallUnknown, match="calling waits on rank 2"):
            await waiting[1]
        with pytest.raises(dist.CallNotRun) as refused:
            await pg.call(2, "who")
        assert isinstance(refused.value.__cause__, dist.PeerLost)
        assert not waiting[0].done()
    elif pg.rank == 2:
        await asyncio.Event().wait()
    rebuilt = await pg.rebuild()
    assert rebuilt.size == 2
    if pg.rank == 0:
        assert not waiting[0].done()  # it was asked in the epoch before
        await rebuilt.call(1, "go")
        assert await waiting[0] == 11
        assert await pg.call(1, "who") == [1, pid]  # the old group still names processes
        with pytest.raises(dist.CallNotRun, match="no member"):
            await pg.call(2, "who")
        assert await rebuilt.call(1, "who") == [1, pid]
    await rebuilt.barrier()
    await rebuilt.aclose()


@pytest.mark.slow(COSTLY)
@spmd(world_size=3, exits={2: -9}, timeout=60)
async def test_calls_go_on_while_the_group_is_rebuilt(pg: ProcessGroup) -> None:
    """Also the first ones of a pair, which find the other at its new address."""

    @pg.handler
    async def echo(value: Any) -> Any:
        return value

    await pg.barrier()
    if pg.rank == 2:
        die()
    stop = asyncio.Event()
    answered = 0

    async def ask(first: bool) -> None:
        nonlocal answered
        while not stop.is_set():
            if not first:
                value = [answered, pg.rank]
                assert await pg.call(1 - pg.rank, echo, value) == value
            await asyncio.sleep(0)
            answered += 1

    asking = [asyncio.create_task(ask(pg.rank == 0))]
    epochs = pg
    for _ in range(4):
        epochs = await epochs.rebuild()
        assert epochs.size == 2
        if pg.rank == 0 and epochs.epoch == 2:
            asking.append(asyncio.create_task(ask(False)))
    stop.set()
    await asyncio.gather(*asking)
    assert answered > 4
    await epochs.barrier()
    await epochs.aclose()


@pytest.mark.slow(COSTLY)
@spmd(world_size=2)
async def test_thousands_of_calls_and_64_mib(pg: ProcessGroup) -> None:
    @pg.handler
    async def add(a: int, b: int) -> int:
        return a + b

    @pg.handler
    async def twice(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        array *= 2
        return array

    @pg.handler
    async def count(upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    other = 1 - pg.rank
    results = await asyncio.gather(*(pg.call(other, add, number, pg.rank) for number in range(3_000)))
    assert results == [number + pg.rank for number in range(3_000)]
    array = np.arange(8 << 20, dtype=np.float64) + pg.rank
    beside = asyncio.create_task(pg.call(other, add, 1, 2))
    assert np.array_equal(await pg.call(other, twice, array), array * 2)
    assert await beside == 3
    assert [number async for number in pg.stream(other, count, 3_000)] == list(range(3_000))
    await pg.barrier()


@pytest.mark.slow("network namespaces")
@spmd(world_size=2, hosts=2)
async def test_between_hosts(pg: ProcessGroup) -> None:
    @pg.handler
    async def echo(value: Any) -> Any:
        return value

    payload = bytes(range(256)) * 4096
    for size in (0, 1, 100, 70_000, len(payload)):
        assert await pg.call(1 - pg.rank, echo, payload[:size]) == payload[:size]
    await pg.send_message(1 - pg.rank, {"from": pg.rank})
    assert await anext(pg.messages()) == (1 - pg.rank, {"from": 1 - pg.rank})
    await pg.barrier()
