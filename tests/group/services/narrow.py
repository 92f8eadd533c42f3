"""A network in one process whose lines take little at a time, stand still, and break, in virtual time too.

A line keeps what its reader has not taken: a little as a socket does, and the rest as its writer's, which is
told when that has left. A reader whose loop is blocked takes nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable

from aiodist.base.errors import PeerLost
from aiodist.transport.line import NO_GOODBYE, Line
from aiodist.transport.memory import MemoryEndpoint, MemoryNetwork

SOCKET = 4096
"""Bytes that a line takes without letting its writer wait."""


class Narrow(MemoryNetwork):
    """The network.

    Args:
        rng: decides on delays and on how bytes are cut.
        most: bytes that a reader takes at once.

    Attributes:
        lines: those that have not ended, one end of each.
        refused: dials that fail before one does not.
    """

    def __init__(self, rng: random.Random | None = None, most: int = 1 << 16) -> None:
        super().__init__()
        self.rng = random.Random(0) if rng is None else rng
        self.most = most
        self.lines: list[NarrowLine] = []
        self.refused = 0
        self._blocked: dict[int, float] = {}

    def endpoint(self, rank: int) -> NarrowEndpoint:
        """The endpoint of a rank."""
        return NarrowEndpoint(self, rank)

    def block(self, rank: int, seconds: float) -> None:
        """Have a rank take nothing for so long, as where its loop is blocked."""
        now = asyncio.get_running_loop().time()
        self._blocked[rank] = max(now + seconds, self._blocked.get(rank, 0.0))

    def cut(self, src: int, dst: int) -> None:
        """Break the lines that one rank has dialed to another; what was on its way is lost."""
        for line in list(self.lines):
            if line.ends == (src, dst):
                line.cut()

    def takes_at(self, rank: int) -> float:
        """The time at which a rank takes what is sent to it now."""
        delay = self.rng.choice([0.0, 0.0, 0.0, 0.001, 0.01])
        return max(asyncio.get_running_loop().time() + delay, self._blocked.get(rank, 0.0))


class NarrowEndpoint(MemoryEndpoint):
    """An endpoint whose lines are narrow; its links are not."""

    _network: Narrow

    async def dial_line(self, rank: int) -> Line:
        self._check_open()
        network = self._network
        for _ in range(network.rng.randrange(4)):
            await asyncio.sleep(0)
        await asyncio.sleep(network.rng.choice([0.0, 0.001, 0.02]))
        remote = network.endpoints.get(rank)
        if remote is None or remote.closing or self.closing:
            raise PeerLost([rank], "it is not in the network")
        if network.refused:
            network.refused -= 1
            raise ConnectionRefusedError("refused")
        mine = NarrowLine(self._loop, network, self.rank, rank)
        theirs = NarrowLine(self._loop, network, rank, self.rank)
        mine.other, theirs.other = theirs, mine
        network.lines.append(mine)
        remote.on_line(self.rank, theirs)
        return mine


class NarrowLine(Line):
    """One end of a line.

    Attributes:
        ends: the rank that writes here, and the one that reads.
        other: the other end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, network: Narrow, src: int, dst: int) -> None:
        super().__init__()
        self.ends = src, dst
        self.other: NarrowLine
        self._loop = loop
        self._network = network
        self._out = bytearray()
        self._context = contextvars.copy_context()
        self._started = self._over = self._closing = self._moves = self._armed = False
        self._heard: list[bytes] = []

    def start(self) -> None:
        self._started = True
        for data in self._heard:
            self._loop.call_soon(self._hear, data)
        self._heard.clear()

    @property
    def waiting(self) -> int:
        return max(0, len(self._out) - SOCKET)

    def write(self, data: bytes) -> None:
        if self._over or self._closing:
            return
        self._out += data
        self._armed = self._armed or self.waiting > 0
        self._move_later()

    def post(self, data: bytes) -> None:
        self._loop.call_soon_threadsafe(self.write, data)

    def close(self, linger: float = 0.0) -> None:
        self._closing = True
        self._move_later()

    def kill(self) -> None:
        del self._out[SOCKET:]
        self.close()

    def cut(self) -> None:
        """End it for both sides, at once."""
        for line in (self, self.other):
            line._gone()
            self._loop.call_soon(line._end, "Connection reset by peer", context=line._context)

    def _move_later(self) -> None:
        if not self._moves and not self._over:
            self._moves = True
            self._loop.call_at(self._network.takes_at(self.ends[1]), self._move)

    def _move(self) -> None:
        self._moves = False
        if self._over:
            return
        count = self._network.rng.randint(1, self._network.most)
        data = bytes(self._out[:count])
        del self._out[:count]
        if data:
            self._loop.call_soon(self.other._hear, data, context=self.other._context)
        if self._armed and not self.waiting and not self._closing:
            self._armed = False
            self._loop.call_soon(self._drained, context=self._context)
        if self._out:
            self._move_later()
        elif self._closing:
            self._gone()
            self._loop.call_soon(self.other._end, NO_GOODBYE, context=self.other._context)

    def _drained(self) -> None:
        if not (self._over or self._closing or self.waiting):
            self.drained()

    def _hear(self, data: bytes) -> None:
        if not self._started:
            self._heard.append(data)
        elif not (self._over or self._closing):
            self.received(data)

    def _end(self, why: str) -> None:
        """Hear that nothing more comes."""
        told: Callable[[str], None] | None = None if self._closing else self.ended
        self._closing = True
        self._gone()
        if told is not None:
            told(why)

    def _gone(self) -> None:
        self._over = True
        self._out.clear()
        if self in self._network.lines:
            self._network.lines.remove(self)
