"""A TCP proxy that does to connections what networks do, by plan or at once.

    proxy = await FaultProxy.start(("127.0.0.1", port), seed=7)
    proxy.forth.plan("corrupt", at=4711)   # for connections to come: flip a bit of byte 4711 from the dialer
    proxy.back.delay = 0.05                # for all: what the target says takes 50 ms longer
    proxy.forth.drop()                     # now: what the dialer says vanishes, and nobody is told
    proxy.cut()                            # now: reset all connections

`forth` is from whoever dialed to the target, `back` the other way. What vanishes here was acknowledged to its
sender by this machine's kernel: a black hole that the sender's kernel notices needs `Partition`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Self

from aiodist.net.sockets import connect_socket
from tests.support.faults.course import Clog, Course, Cut, Fault, Finish, Forward, Kind

Address = tuple[str, int]

_PIECE = 64 << 10
_ABRUPT = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets


class Direction:
    """One way through a proxy, for all its connections. Change the attributes whenever you like.

    Args:
        seed: of delays that vary, and of bits that nobody chose.

    Attributes:
        delay: seconds that each piece (at most 64 KiB) is held, one after the other.
        jitter: seconds, at most, that are added to it at random.
        rate: bytes per second and connection, at most; None does not limit it.
    """

    def __init__(self, seed: int) -> None:
        self.delay = 0.0
        self.jitter = 0.0
        self.rate: float | None = None
        self._random = random.Random(seed)
        self._plan: list[Fault] = []
        self._free = asyncio.Event()
        self._free.set()
        self._dropping = False
        self._flows: set[_Flow] = set()

    @property
    def passed(self) -> int:
        """Bytes that came in on the connections that are open now."""
        return sum(flow.course.passed for flow in self._flows)

    def plan(self, kind: Kind, at: int, bit: int | None = None) -> None:
        """Plan a fault for every connection that is made from now on. See `Fault`.

        Args:
            kind: what.
            at: before, or in, which byte of this direction, counted from 0.
            bit: of 'corrupt'; None: by the seed.
        """
        self._plan.append(Fault(kind, at, self._random.randrange(8) if bit is None else bit))

    def strike(self, kind: Kind, after: int = 0, bit: int | None = None) -> None:
        """Have a fault befall every connection that is open now. See `Fault`.

        Args:
            kind: what.
            after: how many more bytes come through before.
            bit: of 'corrupt'; None: by the seed.
        """
        for flow in self._flows:
            flow.course.add(kind, after, self._random.randrange(8) if bit is None else bit)

    def forget(self) -> None:
        """Plan nothing for connections to come."""
        self._plan.clear()

    def drop(self) -> None:
        """Drop everything from now on, in order of reading; for good, as a stream with a hole is none."""
        self._dropping = True
        for flow in self._flows:
            flow.course.dropping = True

    def clog(self) -> None:
        """Read no more: senders find the way full after a while. `unclog` goes on where it stopped."""
        self._free.clear()

    def unclog(self) -> None:
        """Read again."""
        self._free.set()

    def finish(self) -> None:
        """End this direction of every connection in order (FIN); the other goes on."""
        for flow in list(self._flows):
            flow.finish()

    def _course(self) -> Course:
        course = Course(self._plan)
        course.dropping = self._dropping
        return course

    def _hold(self, nbytes: int) -> float:
        seconds = self.delay + (self._random.random() * self.jitter if self.jitter else 0.0)
        return seconds + (nbytes / self.rate if self.rate else 0.0)


class FaultProxy:
    """A listener that leads each connection to a target. Make one with `await FaultProxy.start(…)`.

    Attributes:
        address: host and port to dial.
        forth: what is done to bytes from the dialer to the target.
        back: … from the target to the dialer.
        accepted: connections so far.
    """

    def __init__(self, listener: socket.socket, lead: Callable[[], Awaitable[Address]], seed: int) -> None:
        self.address: Address = listener.getsockname()[:2]
        self.forth = Direction(2 * seed)
        self.back = Direction(2 * seed + 1)
        self.accepted = 0
        self._listener = listener
        self._lead = lead
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pairs: set[_Pair] = set()
        self._spawn(self._accept())

    @classmethod
    async def start(
        cls, target: Address | Callable[[], Awaitable[Address]], *, seed: int = 0, host: str = "127.0.0.1"
    ) -> FaultProxy:
        """Listen on a free port.

        Args:
            target: host and port, or what is awaited to know them when somebody dials.
            seed: of what is random.
            host: where to listen.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=128)
        listener.setblocking(False)

        async def lead() -> Address:
            return target if isinstance(target, tuple) else await target()

        return cls(listener, lead, seed)

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._pairs)

    def cut(self) -> None:
        """Reset every connection, on both sides (RST)."""
        for pair in list(self._pairs):
            pair.close(abrupt=True)

    def close_all(self) -> None:
        """Close every connection on both sides at once, as a process that ends does (FIN)."""
        for pair in list(self._pairs):
            pair.close(abrupt=False)

    async def aclose(self) -> None:
        """Reset all connections and stop listening."""
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ── connections ──────────────────────────────────────────────────────────────────────────────────

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            try:
                dialer, _ = await self._loop.sock_accept(self._listener)
            except ConnectionAbortedError:
                continue
            dialer.setblocking(False)
            self.accepted += 1
            self._spawn(self._serve(dialer))

    async def _serve(self, dialer: socket.socket) -> None:
        target: socket.socket | None = None
        try:
            address = await self._lead()
            target = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
            target.setblocking(False)
            await connect_socket(target, address)
        except BaseException as error:
            _shut(dialer, abrupt=True)  # as a refused connection, seen from here
            if target is not None:
                target.close()
            if not isinstance(error, OSError):
                raise
            return
        for sock in (dialer, target):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(dialer, target)
        self._pairs.add(pair)
        try:
            async with asyncio.TaskGroup() as tasks:
                for way, source, sink in ((self.forth, dialer, target), (self.back, target, dialer)):
                    flow = _Flow(pair, way, source, sink)
                    pair.tasks.append(tasks.create_task(flow.run()))
        finally:
            pair.close(abrupt=False)
            self._pairs.discard(pair)


class _Pair:
    """The two sockets of one connection."""

    def __init__(self, dialer: socket.socket, target: socket.socket) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self._sockets = (dialer, target)
        self._closed = False

    def close(self, *, abrupt: bool) -> None:
        if self._closed:
            return
        self._closed = True
        for task in self.tasks:
            task.cancel()
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.remove_reader(sock.fileno())  # before the number is anybody else's
            loop.remove_writer(sock.fileno())
            _shut(sock, abrupt=abrupt)


class _Flow:
    """One direction of one connection, while it lasts."""

    def __init__(self, pair: _Pair, way: Direction, source: socket.socket, sink: socket.socket) -> None:
        self.course = way._course()
        self._pair = pair
        self._way = way
        self._source = source
        self._sink = sink
        self._finished = False

    def finish(self) -> None:
        if not self._finished:
            self._finished = True
            with contextlib.suppress(OSError):
                self._sink.shutdown(socket.SHUT_WR)

    async def run(self) -> None:
        self._way._flows.add(self)
        try:
            await self._pump()
        except OSError:
            self._pair.close(abrupt=True)  # one side was reset: so is the other
        finally:
            self._way._flows.discard(self)

    async def _pump(self) -> None:
        loop, way = asyncio.get_running_loop(), self._way
        while True:
            await way._free.wait()
            data = await loop.sock_recv(self._source, _PIECE)
            if not data:
                self.finish()
                return
            await way._free.wait()  # what was read in that moment waits, too
            pause = way._hold(len(data))
            if pause:
                await asyncio.sleep(pause)
            if not await self._pass(data):
                return

    async def _pass(self, data: bytes) -> bool:
        """Let a piece take its course; whether there may be more."""
        loop = asyncio.get_running_loop()
        while data:
            rest = b""
            for effect in self.course.feed(data):
                match effect:
                    case Forward(good):
                        if not self._finished:
                            await loop.sock_sendall(self._sink, good)
                    case Clog(rest):
                        self._way.clog()
                    case Finish():
                        self.finish()
                        await self._drain()
                        return False
                    case Cut():
                        self._pair.close(abrupt=True)
                        return False
            data = rest
            await self._way._free.wait()
        return True

    async def _drain(self) -> None:
        """Read on after an early end: what the sender still says goes nowhere."""
        while await asyncio.get_running_loop().sock_recv(self._source, _PIECE):
            pass


def _shut(sock: socket.socket, *, abrupt: bool) -> None:
    if abrupt:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABRUPT)
    sock.close()
