"""What asyncio has for messages: a Unix stream between two ranks, each message behind its length."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from aiodist.cli.bench.cases import Array, Case
from benchmarks.ranks.base import LOOPBACK, AbsentError, Call, Peer
from benchmarks.ranks.objects import OBJECTS, there_and_back
from benchmarks.ranks.service import StreamService, measured

_LENGTH = 8
_ROOM = 1 << 20  # of the reader's buffer


class StreamsPeer(Peer):
    """Two ranks, one connection of `asyncio.start_unix_server`, on the loop that takes the orders."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def connect(self, port: int, host: str = LOOPBACK) -> None:
        path = Path(tempfile.gettempdir(), f"aiodist-benchmark-{os.getuid()}-{port}")
        if self.size != 2:
            raise AbsentError("only for two ranks")
        if self.rank == 0:
            came: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
            came = asyncio.get_running_loop().create_future()
            server = await asyncio.start_unix_server(
                lambda reader, writer: came.set_result((reader, writer)), path, limit=_ROOM
            )
            try:
                self.reader, self.writer = await asyncio.wait_for(came, 30)
            finally:
                server.close()
                path.unlink(missing_ok=True)  # noqa: ASYNC240 - it blocks nobody
        else:
            self.reader, self.writer = await asyncio.wait_for(_dial(path), 30)
        # So `drain` waits for all of it: else 64 KiB may be left, and uvloop copies nothing of the user's.
        self.writer.transport.set_write_buffer_limits(high=0)

    async def disconnect(self) -> None:
        self.writer.close()

    async def barrier(self) -> None:
        await self._send(memoryview(b""))
        await self.reader.readexactly(_LENGTH)

    async def prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        wanted = Case(**case)
        if wanted.what not in OBJECTS:
            return await super().prepare(case)
        await self.barrier()
        self.once = await there_and_back(wanted.what, self.rank, self._send_object, self._receive_object)
        return {}

    async def requests(self, kind: str, at_once: int, count: int) -> list[float]:
        """Ask, or serve, so many requests → [seconds, processor seconds] of this rank."""
        service = StreamService(self.reader, self.writer, kind, at_once, count)
        return await measured(service, self.rank, self.barrier, at_once, count)

    async def bind(self, case: Case) -> tuple[Call, Array, Array]:
        if case.what != "p2p":
            raise AbsentError("only for messages")
        tensor, out = (np.empty(length, case.numpy_dtype) for length in case.lengths(self.size))
        sent, place = tensor.view(np.uint8).data, out.view(np.uint8).data

        async def there() -> None:
            await self._send(sent)
            await self._receive(place)

        async def back() -> None:
            await self._receive(place)
            await self._send(sent)

        return (there, back)[self.rank], tensor, out

    async def calls(self, count: int) -> None:
        once: Any = self.once
        for _ in range(count):
            await once()

    async def _send(self, data: memoryview) -> None:
        self.writer.write(len(data).to_bytes(_LENGTH, "little"))
        self.writer.write(data)
        await self.writer.drain()

    async def _send_object(self, obj: Any) -> None:
        await self._send(memoryview(msgpack.packb(obj)))

    async def _receive_object(self) -> Any:
        length = int.from_bytes(await self.reader.readexactly(_LENGTH), "little")
        return msgpack.unpackb(await self.reader.readexactly(length))

    async def _receive(self, place: memoryview) -> None:
        length = int.from_bytes(await self.reader.readexactly(_LENGTH), "little")
        place[:] = await self.reader.readexactly(length)


async def _dial(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_unix_connection(path, limit=_ROOM)
        except (ConnectionRefusedError, FileNotFoundError):
            await asyncio.sleep(0.01)
