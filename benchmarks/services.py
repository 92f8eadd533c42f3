"""`pg.call` beside the same service over asyncio streams: a small request, answered with itself.

    aiodist run --nproc-per-node 2 -m benchmarks.services

Rank 0 asks and rank 1 serves, on one loop each, over a Unix socket and over loopback TCP. The streams carry
msgpack with a number for each request, as a service does that answers many at once. The ways take turns,
several times; every answer is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import platform
import statistics
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack

import aiodist as dist
from benchmarks.machine import facts

Ask = Callable[[Any], Awaitable[Any]]
_SIZE = struct.Struct("<I")


def request(number: int) -> dict[str, Any]:
    """What is asked, and answered."""
    return {"path": "/items/double", "value": number, "more": [0.5, 0.25]}


class StreamClient:
    """Requests over one stream, any number of them at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._task = asyncio.create_task(self._dispatch())

    async def ask(self, value: Any) -> Any:
        """Ask, and wait for the answer."""
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        write(self._writer, [number, value])
        await self._writer.drain()
        return await future

    async def _dispatch(self) -> None:
        while True:
            number, value = await read(self._reader)
            self._waiting.pop(number).set_result(value)

    async def aclose(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._writer.close()
        await self._writer.wait_closed()


async def serve_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer what comes, until it ends."""
    try:
        while True:
            write(writer, await read(reader))
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()
        await writer.wait_closed()


def write(writer: asyncio.StreamWriter, value: Any) -> None:
    """A frame of msgpack."""
    packed = msgpack.packb(value)
    writer.write(_SIZE.pack(len(packed)) + packed)


async def read(reader: asyncio.StreamReader) -> Any:
    """The next frame of msgpack."""
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return msgpack.unpackb(await reader.readexactly(size))


async def one_by_one(ask: Ask, count: int) -> list[float]:
    """Seconds of each of so many requests, one after the other."""
    taken = []
    for number in range(count):
        began = time.perf_counter()
        answer = await ask(request(number))
        taken.append(time.perf_counter() - began)
        assert answer["value"] == number
    return taken


async def at_once(ask: Ask, count: int, workers: int) -> float:
    """Seconds for each of so many requests, some of them at once."""

    async def work(first: int) -> None:
        for number in range(first, count, workers):
            assert (await ask(request(number)))["value"] == number

    began = time.perf_counter()
    await asyncio.gather(*map(work, range(workers)))
    return (time.perf_counter() - began) / count


async def measure(pg: dist.ProcessGroup, folder: str, turns: int, count: int) -> None:
    """Ask by each way in turns, and print what it took."""
    unix = StreamClient(*await asyncio.open_unix_connection(f"{folder}/socket"))
    tcp = StreamClient(*await asyncio.open_connection("127.0.0.1", await pg.call(1, "port")))
    ways: dict[str, Ask] = {
        "call, async def": lambda value: pg.call(1, "echo", value),
        "call, def": lambda value: pg.call(1, "quick", value),
        "stream, Unix": unix.ask,
        "stream, TCP": tcp.ask,
    }
    single: dict[str, list[float]] = {way: [] for way in ways}
    many: dict[tuple[str, int], list[float]] = {(way, k): [] for way in ways for k in (32, 256)}
    for turn in range(1 + turns):
        for way, ask in ways.items():
            taken = await one_by_one(ask, count)
            if turn:
                single[way] += taken
            for workers in (32, 256):
                each = await at_once(ask, 8 * count, workers)
                if turn:
                    many[way, workers].append(each)
    print(f"{facts()['cpu']}; Python {platform.python_version()}; {turns} turns of {count} requests")
    print(f"{'':16}{'median':>10}{'p99':>10}{'32 at once':>12}{'256 at once':>12}  µs a request")
    for way, taken in single.items():
        cuts = statistics.quantiles(taken, n=100)
        rates = [statistics.median(many[way, k]) for k in (32, 256)]
        print(
            f"{way:16}{cuts[49] * 1e6:10.1f}{cuts[98] * 1e6:10.1f}"
            + "".join(f"{r * 1e6:12.1f}" for r in rates)
        )
    await unix.aclose()
    await tcp.aclose()


async def main() -> None:
    """One rank's part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--count", type=int, default=1000)
    args = parser.parse_args()
    async with await dist.init_process_group() as pg:
        if pg.rank == 0:
            await pg.barrier()
            await measure(pg, await pg.call(1, "folder"), args.turns, args.count)
            await pg.barrier()
            return

        @pg.handler
        async def echo(value: Any) -> Any:
            return value

        pg.handler(lambda value: value, name="quick")
        with tempfile.TemporaryDirectory() as folder:
            tcp = await asyncio.start_server(serve_stream, "127.0.0.1", 0)
            unix = await asyncio.start_unix_server(serve_stream, str(Path(folder) / "socket"))
            pg.handler(lambda: tcp.sockets[0].getsockname()[1], name="port")
            pg.handler(lambda: folder, name="folder")
            async with tcp, unix:
                await pg.barrier()
                await pg.barrier()


if __name__ == "__main__":
    dist.run(main())
