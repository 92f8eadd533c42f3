"""A rank that was given up: nothing of it is taken any more, and nothing waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiodist.transport import Endpoint, Into, Key, SocketEndpoint
from aiodist.transport.memory import MemoryEndpoint, MemoryNetwork
from aiodist.transport.shm.arena import available
from tests.support.channel_pair import Recorder, turn_until

KINDS = ["tcp", "memory", *(["shm"] if available() else [])]


@asynccontextmanager
async def endpoints(kind: str, count: int = 2) -> AsyncIterator[list[Any]]:
    made: list[Endpoint] = []
    network = MemoryNetwork()
    for rank in range(count):
        if kind == "memory":
            made.append(MemoryEndpoint(network, rank))
        else:
            made.append(await SocketEndpoint.open(rank=rank, job="job", secret=b"secret", mode=kind))
    for one in made:
        one.observer = Recorder()
        one.introduce({rank: other.card for rank, other in enumerate(made)})
    if kind == "shm":
        await asyncio.gather(*(one.prove_local(range(count)) for one in made))
    try:
        yield made
    finally:
        await asyncio.gather(*(one.aclose() for one in made))


def key(seq: int) -> Key:
    return Key(1, 0, seq, 0)


def send(source: Endpoint, target: int, seq: int, data: bytes = b"hello") -> bool:
    return source.outgoing(target).send(key(seq), bytes(32), memoryview(data), lambda: None)


def _never() -> None:
    raise AssertionError("nobody takes this")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_posted_receive_is_forgotten_and_its_memory_left_alone(kind: str) -> None:
    async with endpoints(kind) as (mine, theirs):
        place = bytearray(5)
        assert not mine.incoming(1).recv(key(0), 5, Into(memoryview(place)), _never)
        mine.drop(1)
        send(theirs, 0, 0)
        # One that had begun to pass memory is told by the control links why nobody takes it.
        await theirs.observer.until(lambda: bool(theirs.observer.losses or theirs.observer.failures))
        assert bytes(place) == bytes(5)
        assert not mine.observer.losses
        assert not mine.observer.goodbyes
        assert not mine.observer.arrivals


@pytest.mark.parametrize("way", ["there", "back"])
@pytest.mark.parametrize("kind", KINDS)
async def test_channels_that_stand_end_and_the_other_side_is_told(kind: str, way: str) -> None:
    async with endpoints(kind) as (mine, theirs):
        source, target = (mine, theirs) if way == "there" else (theirs, mine)
        send(source, target.rank, 0, bytes(1 << 20))  # offered; nobody receives it
        await turn_until(lambda: len(target.observer.arrivals) == 1)
        mine.drop(1)
        mine.drop(1)
        await theirs.observer.until(lambda: bool(theirs.observer.losses))
        assert not send(mine, 1, 1)
        assert not mine.observer.losses


@pytest.mark.parametrize("kind", KINDS)
async def test_the_others_are_not_touched(kind: str) -> None:
    async with endpoints(kind, 3) as (mine, theirs, other):
        mine.drop(1)
        done = asyncio.get_running_loop().create_future()
        place = bytearray(5)
        mine.incoming(2).recv(key(0), 5, Into(memoryview(place)), lambda: done.set_result(None))
        send(other, 0, 0)
        await done
        assert bytes(place) == b"hello"
        send(other, 1, 0)
        await theirs.observer.until(lambda: bool(theirs.observer.arrivals))


async def test_dropping_is_nothing_to_an_endpoint_that_closes() -> None:
    async with endpoints("tcp") as (mine, _theirs):
        mine.kill()
        mine.drop(1)
