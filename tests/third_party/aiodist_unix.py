"""A backend for aiodist: ranks of one host move their data over Unix sockets of their own."""

import asyncio
import contextlib
import socket
import struct
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiodist.backends.foreign import Done, Engine, Move, Setup, Task

COLLECTIVES, MESSAGES = 0, 1  # each has a connection of its own, so that neither waits for the other
GREETING = struct.Struct("<IB")  # whoever connects says its rank, and for what


class UnixEngine(Engine):
    """Two connections to every other member. What goes over one goes in order, and needs no header."""

    name = "unix"
    capabilities = frozenset({"one-answer", "regroups"})
    beside = True  # a transfer can be cancelled
    ready = True  # messages have no tags

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._lines: dict[tuple[int, int], Line] = {}  # by peer and purpose
        self._sockets = contextlib.ExitStack()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def tell(cls, device: int | None) -> bytes:
        return socket.gethostname().encode()

    @classmethod
    def fits(cls, told: Sequence[bytes]) -> str:
        return "" if len(set(told)) == 1 else "the ranks are on several hosts"

    async def open(self) -> None:
        rank, size, loop = self.setup.rank, self.setup.size, self.setup.loop
        keep = self._sockets.enter_context
        out, into = socket.socketpair()
        self._lines[rank, COLLECTIVES] = Line(keep(out), keep(into))  # to myself
        with (
            tempfile.TemporaryDirectory() as folder,  # nobody else can enter it
            socket.socket(socket.AF_UNIX) as server,
        ):
            server.bind(f"{folder}/socket")
            server.listen(2 * size)
            server.setblocking(False)
            paths = await self.setup.gather(server.getsockname().encode())
            for peer in range(rank):
                for purpose in (COLLECTIVES, MESSAGES):
                    line = self._lines[peer, purpose] = Line(keep(socket.socket(socket.AF_UNIX)))
                    await loop.sock_connect(line.out, paths[peer].decode())
                    await line.send(np.frombuffer(GREETING.pack(rank, purpose), np.uint8))
            for _ in range(2 * (size - 1 - rank)):
                line = Line(keep((await loop.sock_accept(server))[0]))
                greeting = np.empty(GREETING.size, np.uint8)
                await line.receive(greeting)
                self._lines[GREETING.unpack(greeting.tobytes())] = line

    def exchange(self, moves: Sequence[Move], done: Done) -> None:
        self._begin(COLLECTIVES, moves, done)

    def send(self, task: Task, peer: int, number: int, done: Done) -> None:
        assert task.source is not None
        self._begin(MESSAGES, [Move(True, peer, task.source)], done)

    def recv(self, task: Task, peer: int, number: int, done: Done) -> None:
        assert task.target is not None
        self._begin(MESSAGES, [Move(False, peer, task.target)], done)

    def abort(self, released: Done) -> None:
        for task in self._tasks:
            task.cancel()
        ended = asyncio.gather(*self._tasks, return_exceptions=True)
        ended.add_done_callback(lambda _: released())

    def close(self) -> None:
        self._sockets.close()

    def _begin(self, purpose: int, moves: Sequence[Move], done: Done) -> None:
        task = self.setup.loop.create_task(self._carry(purpose, moves, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, purpose: int, moves: Sequence[Move], done: Done) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for sends, peer, array in moves:
                    line = self._lines[peer, purpose]
                    tasks.create_task(line.send(array) if sends else line.receive(array))
        except* ConnectionError:
            pass  # somebody has gone: aiodist knows who, and ends the group
        except* Exception as errors:
            self.setup.failed(errors.exceptions[0])
        else:
            done()


class Line:
    """A connection. In each direction one array follows the other."""

    def __init__(self, out: socket.socket, into: socket.socket | None = None) -> None:
        self.out, self.into = out, into or out
        self._sending, self._receiving = asyncio.Lock(), asyncio.Lock()  # who asks first is served first
        self.out.setblocking(False)
        self.into.setblocking(False)

    async def send(self, array: NDArray[Any]) -> None:
        async with self._sending:
            await asyncio.get_running_loop().sock_sendall(self.out, array.view(np.uint8).data)

    async def receive(self, array: NDArray[Any]) -> None:
        rest = array.view(np.uint8).data
        async with self._receiving:
            while rest:
                count = await asyncio.get_running_loop().sock_recv_into(self.into, rest)
                if not count:
                    raise ConnectionResetError
                rest = rest[count:]
