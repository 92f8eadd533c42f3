"""Rank 0 asks and rank 1 serves: small requests, many at once, as a user of each library would write it."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgpack
import numpy as np

import aiodist as dist
from benchmarks.harness.cases import WrongResultError

KINDS = ("objects", "tensors", "calls", "functions")
_LENGTH = 64  # elements of a tensor
_ROOM = 1 << 16  # bytes read at once


class Service(Protocol):
    """Both ends of one way to ask."""

    async def ask(self, number: int) -> None:
        """Ask, as the worker with this number, and check the answer."""

    async def serve(self, count: int) -> None:
        """Answer so many requests."""


async def measured(
    service: Service, rank: int, barrier: Callable[[], Awaitable[None]], at_once: int, count: int
) -> list[float]:
    """Have so many requests asked and served, some of them at once.

    Returns:
        [seconds of all, processor seconds here, seconds that 99 % of the requests do not exceed].

    Args:
        count: a multiple of `at_once`.
    """
    await barrier()
    took = [0.0]
    began, spent = time.perf_counter(), time.process_time()
    if rank == 0:
        workers = (_worker(service, number, count // at_once, took) for number in range(at_once))
        await asyncio.gather(*workers)
    else:
        await service.serve(count)
    ended = time.perf_counter() - began, time.process_time() - spent
    return [*ended, float(np.quantile(took, 0.99))]


async def _worker(service: Service, number: int, count: int, took: list[float]) -> None:
    for _ in range(count):
        began = time.perf_counter()
        await service.ask(number)
        took.append(time.perf_counter() - began)


def request(number: int) -> dict[str, Any]:
    """What is asked."""
    return {"path": "/items/double", "value": number, "more": [0.5, 0.25, 0.125]}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What is answered."""
    return {"status": 200, "value": 2 * asked["value"], "more": asked["more"]}


def check(number: int, value: float) -> None:
    """Raise unless the answer is the one to this request."""
    if value != 2 * number:
        raise WrongResultError(f"request {number} was answered with {value}")


class GroupObjects:
    """Objects of a group: requests have one tag, from anybody; answers that of their worker."""

    def __init__(self, pg: dist.ProcessGroup) -> None:
        self._pg = pg

    async def ask(self, number: int) -> None:
        pg = self._pg
        await pg.send_object({"from": pg.rank, "tag": number + 1, **request(number)}, 1)
        answered = await pg.recv_object(1, number + 1)
        check(number, answered["value"])

    async def serve(self, count: int) -> None:
        pg = self._pg
        for _ in range(count):
            asked = await pg.recv_object()
            await pg.send_object(answer(asked), asked["from"], asked["tag"])


class GroupTensors:
    """Tensors of a group: every worker has a tag, and a task that serves it."""

    def __init__(self, pg: dist.ProcessGroup, at_once: int) -> None:
        self._pg = pg
        self._at_once = at_once
        self._asked = np.zeros((at_once, _LENGTH), np.float32)
        self._answers = np.zeros((at_once, _LENGTH), np.float32)

    async def ask(self, number: int) -> None:
        asked, answered = self._asked[number], self._answers[number]
        asked[0] = number
        await self._pg.send(asked, 1, number)
        await self._pg.recv(answered, 1, number)
        check(number, answered[0])

    async def serve(self, count: int) -> None:
        each = count // self._at_once
        await asyncio.gather(*(self._serve(number, each) for number in range(self._at_once)))

    async def _serve(self, number: int, count: int) -> None:
        asked, answered = self._asked[number], self._answers[number]
        for _ in range(count):
            await self._pg.recv(asked, 0, number)
            np.multiply(asked, 2, out=answered)
            await self._pg.send(answered, 0, number)


class GroupCalls:
    """Calls of a handler by name: an async function, or a plain one."""

    def __init__(self, pg: dist.ProcessGroup, plain: bool) -> None:
        self._pg = pg
        self._served = 0
        self._awaited: asyncio.Future[None] | None = None
        pg.handler(self._answer if plain else self._answer_later, name="answer")

    async def _answer_later(self, asked: dict[str, Any]) -> dict[str, Any]:
        return self._answer(asked)

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._served -= 1
        if not self._served and self._awaited is not None:
            self._awaited.set_result(None)
        return answer(asked)

    async def ask(self, number: int) -> None:
        check(number, (await self._pg.call(1, "answer", request(number)))["value"])

    async def serve(self, count: int) -> None:
        self._served += count  # some may have come before
        if self._served:
            self._awaited = asyncio.get_running_loop().create_future()
            await self._awaited


class StreamClient:
    """Requests over one stream of asyncio, any number at once: msgpack, and a number for each.

    Args:
        count: of requests, after whose answers it reads no more.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: float = math.inf
    ) -> None:
        self._reader, self._writer, self._count = reader, writer, count
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._dispatching: asyncio.Task[None] | None = None

    async def call(self, asked: Any) -> Any:
        """Ask, and wait for the answer."""
        if self._dispatching is None:
            self._dispatching = asyncio.create_task(self._dispatch())
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(msgpack.packb([number, asked]))
        await self._writer.drain()
        return await future

    async def _dispatch(self) -> None:
        """Hand all answers out."""
        unpacker, left = msgpack.Unpacker(), self._count
        while left:
            unpacker.feed(await more(self._reader))
            for number, answered in unpacker:
                self._waiting.pop(number).set_result(answered)
                left -= 1


class StreamService:
    """One stream of asyncio.

    Args:
        count: how many requests there will be.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        kind: str,
        at_once: int,
        count: int,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._client = StreamClient(reader, writer, count)
        self._tensors = kind == "tensors"
        self._asked = np.zeros((at_once, _LENGTH), np.float32)
        self._answers = np.zeros((at_once, _LENGTH), np.float32)

    async def ask(self, number: int) -> None:
        if not self._tensors:
            check(number, (await self._client.call(request(number)))["value"])
            return
        asked, answered = self._asked[number], self._answers[number]
        asked[0] = number
        answered[:] = np.frombuffer(await self._client.call(asked.tobytes()), np.float32)
        check(number, answered[0])

    async def serve(self, count: int) -> None:
        unpacker, left = msgpack.Unpacker(), count
        while left:
            unpacker.feed(await more(self._reader))
            for number, asked in unpacker:
                self._writer.write(msgpack.packb([number, self._answer(asked)]))
                left -= 1
            await self._writer.drain()

    def _answer(self, asked: Any) -> Any:
        return (np.frombuffer(asked, np.float32) * 2).tobytes() if self._tensors else answer(asked)


async def more(reader: asyncio.StreamReader) -> bytes:
    """The next bytes of a stream; EOFError where the other end has gone."""
    data = await reader.read(_ROOM)
    if not data:
        raise EOFError("the other end has gone")
    return data


def group_service(pg: dist.ProcessGroup, kind: str, at_once: int) -> Service:
    """A group's service of a kind."""
    if kind in ("calls", "functions"):
        return GroupCalls(pg, plain=kind == "functions")
    return GroupObjects(pg) if kind == "objects" else GroupTensors(pg, at_once)
