"""`pg.call` beside the same service over asyncio streams: a small request, answered with itself.

    aiodist run --nproc-per-node 2 -m benchmarks.services

Rank 0 asks and rank 1 serves, on one loop each, over a Unix socket and over loopback TCP. The streams carry
msgpack with a number for each request, as a service does that answers many at once. The ways take turns,
several times; every answer is checked. Beside the wall time it prints what a request takes of the processor
on either side, which says more where the machine is shared.
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
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgpack

import aiodist as dist
from benchmarks.machine import facts

Ask = Callable[[Any], Awaitable[Any]]
AT_ONCE = (1, 32, 256)
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


@dataclass
class Taken:
    """What requests took, by one way and with so many at once.

    Args:
        seconds: of each.
        each: seconds between two answers, one value a turn.
        asks, answers: seconds of the processor for each request, on the two sides, one value a turn.
    """

    seconds: list[float] = field(default_factory=list)
    each: list[float] = field(default_factory=list)
    asks: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)

    def row(self, name: str, at_once: int) -> str:
        """A line of the table, in µs."""
        cuts = statistics.quantiles(self.seconds, n=100)
        medians = [statistics.median(values) for values in (self.each, self.asks, self.answers)]
        figures = [*medians, cuts[49], cuts[98]]
        return f"{name:16}{at_once:8}" + "".join(f"{figure * 1e6:10.1f}" for figure in figures)


async def at_once(ask: Ask, served: Callable[[], Awaitable[float]], count: int, workers: int) -> Taken:
    """Ask so often, with so many under way.

    Args:
        ask: asks once.
        served: the seconds of the processor that the other side has taken so far.
        count: of requests.
        workers: of which each asks one thing after the other.
    """
    seconds = []

    async def work(first: int) -> None:
        for number in range(first, count, workers):
            start = time.perf_counter()
            answer = await ask(request(number))
            seconds.append(time.perf_counter() - start)
            assert answer["value"] == number

    theirs, mine, began = await served(), time.process_time(), time.perf_counter()
    if workers == 1:
        await work(0)
    else:
        await asyncio.gather(*map(work, range(workers)))
    each, asks = time.perf_counter() - began, time.process_time() - mine
    answers = await served() - theirs
    return Taken(seconds, [each / count], [asks / count], [answers / count])


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
    taken = {(workers, way): Taken() for workers in AT_ONCE for way in ways}
    for turn in range(1 + turns):
        for (workers, way), so_far in taken.items():
            requests = count if workers == 1 else 8 * count
            now = await at_once(ways[way], lambda: pg.call(1, "taken"), requests, workers)
            if turn:
                for one in fields(Taken):
                    getattr(so_far, one.name).extend(getattr(now, one.name))
    print(f"{facts()['cpu']}; Python {platform.python_version()}; {turns} turns of {count} requests")
    print(f"{'µs a request':16}{'at once':>8}{'between':>10}{'CPU asks':>10}{'answers':>10}", end="")
    print(f"{'median':>10}{'p99':>10}")
    for (workers, way), so_far in taken.items():
        print(so_far.row(way, workers))
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
        pg.handler(time.process_time, name="taken")
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
