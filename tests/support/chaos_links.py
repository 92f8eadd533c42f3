"""Connections of the processes of `chaos`: links that go silent, and end without goodbye."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from aiodist.base.errors import PeerLost
from aiodist.group.epochs.job import Job
from aiodist.transport import ControlLink
from aiodist.transport.line import Line, MemoryLine
from aiodist.transport.memory import MemoryEndpoint, MemoryNetwork
from aiodist.transport.memory_link import MemoryLink
from aiodist.transport.peers import Peer
from aiodist.transport.pipe import Pipe

_Item = TypeVar("_Item")


@dataclass(eq=False)
class Process:
    """One simulated process.

    Attributes:
        number: names it.
        host: processes of one host see for themselves that another has died.
        uid: names it in records of epochs.
        dead: it was crashed.
        steps: frames that it sent and requests that it made of a store.
        crash_at: the step before which it crashes; 0: none.
        job: its membership.
        endpoints: that it opened, each with the place that it was opened for.
    """

    number: int
    host: int
    uid: bytes
    dead: bool = False
    steps: int = 0
    crash_at: int = 0
    job: Job | None = None
    endpoints: list[tuple[str, ChaosEndpoint]] = field(default_factory=list)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    task: asyncio.Task[Any] | None = None
    pipes: list[ChaosPipe[Any]] = field(default_factory=list)


class Faults(Protocol):
    """The faults of processes and of what connects them, as `Chaos` decides.

    Attributes:
        arrivals: by process and process, when the last thing arrives that one sent to the other.
    """

    arrivals: dict[tuple[int, int], float]

    def step(self, process: Process) -> bool:
        """Count a step of a process; whether it has not crashed."""

    def seconds(self, src: int, dst: int) -> float:
        """The seconds that what is sent now takes from one process to another."""

    def blocked_until(self, src: int, dst: int) -> float:
        """The time until which nothing comes from one process to another."""

    @property
    def refusal(self) -> float:
        """Seconds until a connection to nobody is refused."""

    def network(self, place: str) -> MemoryNetwork:
        """The endpoints of a place."""

    def linked(self, process: Process, end: MemoryLine) -> None:
        """Remember an end of the line of a control link."""


class ChaosPipe(Pipe[_Item], Generic[_Item]):
    """One direction between two processes. What arrives is handled in the receiver's context.

    Args:
        last_word: what tells the other end that this one is gone.
    """

    def __init__(
        self,
        chaos: Faults,
        src: Process,
        dst: Process,
        deliver: Callable[[_Item], None],
        last_word: _Item,
    ) -> None:
        super().__init__(asyncio.get_running_loop(), deliver, None, src.number, dst.number)
        self._chaos = chaos
        self._src = src
        self.dst = dst
        self._last_word = last_word
        src.pipes.append(self)

    @property
    def last(self) -> float:
        """The time at which the last thing arrives that was sent."""
        return self._last

    def push(self, item: _Item) -> None:
        if not self._loop.is_closed() and self._chaos.step(self._src):
            self._push(item)

    def end(self) -> None:
        """End it, since the sender is gone."""
        self._push(self._last_word)

    def _push(self, item: _Item) -> None:
        at = self._loop.time() + self._chaos.seconds(self._src.number, self.dst.number)
        if at < math.inf:
            before = self._last
            if self._src.host == self.dst.host:  # on one host what is sent first arrives first, on all links
                ends = self._src.number, self.dst.number
                before = max(before, self._chaos.arrivals.get(ends, 0.0))
            self._last = at if at > before else math.nextafter(before, math.inf)
            self._chaos.arrivals[self._src.number, self.dst.number] = self._last
            self._loop.call_at(self._last, self._arrive, item, context=self.dst.context)

    def _arrive(self, item: _Item) -> None:
        if not self.dst.dead:
            self._deliver(item)


class ChaosEndpoint(MemoryEndpoint):
    """An endpoint of a process that may crash, in a network that may break."""

    def __init__(self, chaos: Faults, process: Process, place: str, rank: int) -> None:
        super().__init__(chaos.network(place), rank)
        self._chaos = chaos
        self.process = process
        process.endpoints.append((place, self))

    async def link_control(self, rank: int) -> ControlLink:
        remote, line, theirs = await self._lined(rank)
        mine, end = self._control(line, rank), remote._control(theirs, self.rank)
        self._chaos.linked(self.process, line)
        self._chaos.linked(remote.process, theirs)
        remote.process.context.run(remote.on_control, self.rank, end)
        return mine

    async def dial_line(self, rank: int) -> Line:
        remote, line, theirs = await self._lined(rank)
        remote.process.context.run(remote.on_line, self.rank, theirs)
        return line

    async def _lined(self, rank: int) -> tuple[ChaosEndpoint, MemoryLine, MemoryLine]:
        self._check_open()
        remote = await self._reach(rank)
        mine, theirs = MemoryLine(self._loop), MemoryLine(self._loop)
        mine.out = ChaosPipe(self._chaos, self.process, remote.process, theirs.arrived, None)
        theirs.out = ChaosPipe(self._chaos, remote.process, self.process, mine.arrived, None)
        return remote, mine, theirs

    async def _reach(self, rank: int) -> ChaosEndpoint:
        """The endpoint of a rank, once a connection could be made to it."""
        while True:
            remote = self._network.endpoints.get(rank)
            if not isinstance(remote, ChaosEndpoint):
                await asyncio.sleep(self._chaos.refusal)
                raise PeerLost([rank], "it is not in the network")
            ends = self.process.number, remote.process.number
            clear = max(self._chaos.blocked_until(*ends), self._chaos.blocked_until(*ends[::-1]))
            if clear == math.inf:
                await self._loop.create_future()
            blocked = clear - self._loop.time()
            await asyncio.sleep(blocked + self._chaos.seconds(*ends))
            if blocked > 0:
                continue
            if not self._chaos.step(self.process) or self.closing or remote.closing or remote.process.dead:
                await asyncio.sleep(self._chaos.refusal)
                raise PeerLost([rank], "it is not in the network")
            return remote

    def kill(self) -> None:
        if not self.closed or not self.process.dead:
            super().kill()

    def _dial(self, peer: Peer) -> None:
        if peer.rank not in self._dialed:
            self._dialed.add(peer.rank)
            remote = self._network.endpoints.get(peer.rank)
            number = remote.process.number if isinstance(remote, ChaosEndpoint) else self.process.number
            delay = self._chaos.seconds(self.process.number, number)
            if delay < math.inf:
                self._loop.call_later(delay, self._connect, peer, context=self.process.context)

    def _connect(self, peer: Peer) -> None:
        remote = self._network.endpoints.get(peer.rank)
        if self.closed or self.process.dead:
            return
        if not isinstance(remote, ChaosEndpoint) or remote.closing or remote.process.dead:
            self._loop.call_later(self._chaos.refusal, self._refused, peer, context=self.process.context)
            return
        mine, theirs = MemoryLink.pair(self._loop, self.rank, peer.rank)
        mine.out = ChaosPipe(self._chaos, self.process, remote.process, theirs.arrived, None)
        theirs.out = ChaosPipe(self._chaos, remote.process, self.process, mine.arrived, None)
        remote.take_link(self.rank, theirs)
        peer.sender.attach(mine)

    def take_link(self, rank: int, link: MemoryLink) -> None:
        """Take a link that a rank has dialed."""
        if (caller := self._peer(rank)).ended:
            link.kill()
        else:
            self.process.context.run(caller.receiver.attach, link)

    def _refused(self, peer: Peer) -> None:
        if not self.closed and not self.process.dead:
            self._lost(peer, "it is not in the network")
