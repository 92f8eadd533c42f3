"""A whole cluster in one process: endpoints that find each other in a `MemoryNetwork`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from aiodist.base.environment.tuning import EAGER_BUDGET
from aiodist.base.errors import PeerLost
from aiodist.transport.control_link import ControlLink
from aiodist.transport.line import Line, MemoryLine
from aiodist.transport.memory_link import MemoryLink
from aiodist.transport.peers import Endpoint, Peer
from aiodist.transport.pipe import Delay


class MemoryNetwork:
    """The place where the endpoints of one event loop find each other.

    Args:
        delay: `delay(src, dst)` → seconds that the next frame takes; None: none. Frames stay in order.
        hosts: by rank, a name for the host that it pretends to be on; None: each is on one of its own.
    """

    def __init__(self, delay: Delay | None = None, hosts: Sequence[str] | None = None) -> None:
        self.delay = delay
        self.hosts = hosts
        self.endpoints: dict[int, MemoryEndpoint] = {}

    def seconds(self, src: int, dst: int) -> float:
        """The duration of a connection attempt."""
        return 0.0 if self.delay is None else self.delay(src, dst)


class MemoryEndpoint(Endpoint):
    """An endpoint over memory links. See `Endpoint` for the other arguments.

    Args:
        network: shared by all endpoints of the cluster.
        rank: this endpoint's.
    """

    def __init__(
        self,
        network: MemoryNetwork,
        rank: int,
        *,
        eager_budget: int = EAGER_BUDGET,
    ) -> None:
        super().__init__(asyncio.get_running_loop(), rank, eager_budget=eager_budget)
        self.card = {"memory": rank}
        self._network = network
        self._dialed: set[int] = set()
        network.endpoints[rank] = self

    async def prove_local(
        self, ranks: Iterable[int], linked: Iterable[int] = (), patience: float = 0.0
    ) -> set[int]:
        hosts = self._network.hosts
        return set() if hosts is None else {rank for rank in ranks if hosts[rank] == hosts[self.rank]}

    async def link_control(self, rank: int) -> ControlLink:
        remote, line, theirs = await self._lined(rank)
        mine = self._control(line, rank)
        remote.on_control(self.rank, remote._control(theirs, self.rank))
        return mine

    async def dial_line(self, rank: int) -> Line:
        remote, line, theirs = await self._lined(rank)
        remote.on_line(self.rank, theirs)
        return line

    async def _lined(self, rank: int) -> tuple[MemoryEndpoint, MemoryLine, MemoryLine]:
        """The endpoint of a rank, and both ends of a line to it; `PeerLost` if there is none."""
        self._check_open()
        await asyncio.sleep(self._network.seconds(self.rank, rank))
        remote = self._network.endpoints.get(rank)
        if remote is None or remote.closing or self.closing:
            raise PeerLost([rank], "it is not in the network")
        return remote, *MemoryLine.pair(self._loop, self.rank, rank, self._network.delay)

    def kill(self) -> None:
        if self._network.endpoints.get(self.rank) is self:
            del self._network.endpoints[self.rank]
        super().kill()

    def _dial(self, peer: Peer) -> None:
        if peer.rank not in self._dialed:
            self._dialed.add(peer.rank)
            self._loop.call_later(self._network.seconds(self.rank, peer.rank), self._connect, peer)

    def _connect(self, peer: Peer) -> None:
        remote = self._network.endpoints.get(peer.rank)
        if remote is None or remote.closing:
            self._lost(peer, "it is not in the network")
        elif not self.closed:
            mine, theirs = MemoryLink.pair(self._loop, self.rank, peer.rank, self._network.delay)
            if (caller := remote._peer(self.rank)).ended:
                theirs.kill()
            else:
                caller.receiver.attach(theirs)
            peer.sender.attach(mine)
