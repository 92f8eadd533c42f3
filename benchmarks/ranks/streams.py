"""What asyncio has for messages: a Unix stream between two ranks, each message behind its length."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable

import numpy as np

from benchmarks.harness.cases import Array, Case
from benchmarks.harness.link import AbsentError
from benchmarks.ranks.base import LOOPBACK, Call, LoopPeer
from benchmarks.ranks.service import Service, StreamService

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Came = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
_LENGTH = 8
_ROOM = 1 << 20  # of the reader's buffer


class StreamsPeer(LoopPeer):
    """Two ranks, one connection of `asyncio.start_unix_server`, on the loop that takes the orders."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def connect(self, port: int, host: str = LOOPBACK) -> None:
        if self.size != 2:
            raise AbsentError("only for two ranks")
        if self.rank == 0:
            came: asyncio.Future[Ends] = asyncio.get_running_loop().create_future()
            server = await self._listen(port, lambda reader, writer: came.set_result((reader, writer)))
            try:
                self.reader, self.writer = await asyncio.wait_for(came, 30)
            finally:
                server.close()
        else:
            self.reader, self.writer = await asyncio.wait_for(self._dial(port), 30)
        # So `drain` waits for all of it: else 64 KiB may be left, and uvloop copies nothing of the user's.
        self.writer.transport.set_write_buffer_limits(high=0)

    async def _dial(self, port: int) -> Ends:
        while True:
            try:
                return await self._open(port)
            except (ConnectionRefusedError, FileNotFoundError):
                await asyncio.sleep(0.01)

    async def _listen(self, port: int, came: Came) -> asyncio.Server:
        return await asyncio.start_unix_server(came, _path(port), limit=_ROOM)

    async def _open(self, port: int) -> Ends:
        ends = await asyncio.open_unix_connection(_path(port), limit=_ROOM)
        os.unlink(_path(port))
        return ends

    async def disconnect(self) -> None:
        self.writer.close()

    async def barrier(self) -> None:
        await self._send(memoryview(b""))
        await self.reader.readexactly(_LENGTH)

    def service(self, kind: str, at_once: int, count: int) -> Service:
        return StreamService(self.reader, self.writer, kind, at_once, count)

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

    async def _send(self, data: memoryview) -> None:
        self.writer.write(len(data).to_bytes(_LENGTH, "little"))
        self.writer.write(data)
        await self.writer.drain()

    async def _receive(self, place: memoryview) -> None:
        length = int.from_bytes(await self.reader.readexactly(_LENGTH), "little")
        place[:] = await self.reader.readexactly(length)


class TcpStreamsPeer(StreamsPeer):
    """The same over loopback TCP."""

    async def _listen(self, port: int, came: Came) -> asyncio.Server:
        return await asyncio.start_server(came, LOOPBACK, port, limit=_ROOM)

    async def _open(self, port: int) -> Ends:
        return await asyncio.open_connection(LOOPBACK, port, limit=_ROOM)


def _path(port: int) -> str:
    return f"{tempfile.gettempdir()}/aiodist-benchmark-{os.getuid()}-{port}"
