"""One agent's tie to the agents of the other nodes, while the job runs: alarms, leases, reports.

agents/turn        counts troubles over all nodes: who was first
agents/alarm       exists once anything went wrong anywhere: 'failure', or 'stop' by the operator
agents/alive/<n>   a lease that node n renews; gone without a report: the node is lost
agents/report/<n>  node n's NodeReport, once all its workers have ended
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from aiodist.errors import AiodistError, RendezvousError
from aiodist.launch.plan import Seat
from aiodist.launch.verdict import NodeReport

if TYPE_CHECKING:
    from aiodist.rendezvous.server import StoreServer
    from aiodist.rendezvous.store import Store

# An agent that dies loses its lease as soon as its connection has ended (see `StoreMachine`); the lease's
# own time is for machines that vanish without a word.
LEASE = 15.0
BEAT = 1.0
_FOREVER = 1e8  # seconds
_GOODBYE = 5.0

Trouble = Callable[[bool], None]  # takes whether the operator ends the job


class Nodes:
    """This node's seat, and the others.

    Args:
        seat: where this node's workers sit.
        store: client of the job's store; None: one node alone.
        server: the store itself, where this node hosts it. Both are closed by `aclose`.
        lease: seconds without a sign of life after which a node is lost.
        beat: seconds between signs of life.
    """

    def __init__(
        self,
        seat: Seat,
        store: Store | None,
        server: StoreServer | None,
        *,
        lease: float = LEASE,
        beat: float = BEAT,
    ) -> None:
        self.seat = seat
        self._store = store
        self._server = server
        self._lease, self._beat = lease, beat
        self._tasks: list[asyncio.Task[None]] = []
        self._lost: dict[int, asyncio.Event] = {
            node: asyncio.Event() for node in range(seat.nnodes) if node != seat.node_rank
        }

    @property
    def lost(self) -> tuple[int, ...]:
        """Nodes that stopped answering."""
        return tuple(node for node, event in self._lost.items() if event.is_set())

    def watch(self, trouble: Trouble) -> None:
        """Call `trouble`, perhaps more than once, when another node fails or is lost."""
        if self._store is not None:
            self._tasks = [
                asyncio.create_task(self._keep_alive(self._store, trouble)),
                asyncio.create_task(self._hear_alarm(self._store, trouble)),
            ]

    async def take_turn(self) -> int:
        """The number of our first trouble among those of all nodes, counted from 1."""
        if self._store is None:
            return 1
        with suppress(AiodistError, TimeoutError):
            async with asyncio.timeout(self._lease):
                return await self._store.add("agents/turn", 1)
        return 1

    async def alarm(self, *, stop: bool = False) -> None:
        """Tell the other nodes that the job ends; `stop`: because the operator says so."""
        if self._store is not None:
            with suppress(AiodistError, TimeoutError):
                async with asyncio.timeout(self._lease):
                    await self._store.set("agents/alarm", "stop" if stop else "failure")

    async def publish(self, report: NodeReport) -> None:
        """Leave our report, or a newer one, for the other nodes."""
        if self._store is not None:
            with suppress(AiodistError, TimeoutError):
                async with asyncio.timeout(self._lease):
                    await self._store.set(f"agents/report/{self.seat.node_rank}", report.to_json())

    async def reports(self, mine: NodeReport) -> list[NodeReport]:
        """All nodes' reports, once all have one or are lost; `mine` is published already."""
        store = self._store
        if store is None:
            return [mine]
        await asyncio.gather(*(self._has_reported(store, node) for node in self._lost))
        reports = [mine]
        for node in self._lost:
            if node not in self.lost:
                with suppress(AiodistError, TimeoutError):
                    async with asyncio.timeout(self._lease):
                        data = await store.get(f"agents/report/{node}", timeout=self._lease)
                        reports.append(NodeReport.from_json(data))
        return reports

    async def aclose(self) -> None:
        """Say goodbye; the host of the store waits, bounded, until the others did."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._store is not None:
            if not self.lost:
                with suppress(AiodistError, TimeoutError):
                    async with asyncio.timeout(_GOODBYE):
                        seat = self.seat
                        await self._store.barrier("agents/bye", seat.nnodes, seat.node_rank, timeout=_GOODBYE)
            await self._store.aclose()
        if self._server is not None:
            await self._server.aclose()

    async def _has_reported(self, store: Store, node: int) -> None:
        """Returns when the node has reported, or is lost."""
        report = asyncio.ensure_future(store.wait([f"agents/report/{node}"], timeout=_FOREVER))
        lost = asyncio.ensure_future(self._lost[node].wait())
        try:
            await asyncio.wait({report, lost}, return_when=asyncio.FIRST_COMPLETED)
            if report.done() and report.exception() is not None:
                self._lost[node].set()
        finally:
            report.cancel()
            lost.cancel()
            await asyncio.gather(report, lost, return_exceptions=True)

    async def _hear_alarm(self, store: Store, trouble: Trouble) -> None:
        stop = False
        try:
            stop = await store.get("agents/alarm", timeout=_FOREVER) == b"stop"
        except RendezvousError:
            self._store_is_gone()
        trouble(stop)

    async def _keep_alive(self, store: Store, trouble: Trouble) -> None:
        """Renew our lease, and see who has not renewed theirs."""
        mine = f"agents/alive/{self.seat.node_rank}"
        seen: set[str] = set()
        try:
            while True:
                async with asyncio.timeout(self._lease):
                    await store.set(mine, b"", ttl=self._lease)
                    keys = set(await store.list_keys("agents/"))
                alive = {key for key in keys if key.startswith("agents/alive/")}
                for node, event in self._lost.items():
                    silent = f"agents/alive/{node}" in seen - alive
                    if silent and f"agents/report/{node}" not in keys:
                        event.set()
                        trouble(False)
                seen |= alive
                await asyncio.sleep(self._beat)
        except (RendezvousError, TimeoutError):
            self._store_is_gone()
            trouble(False)

    def _store_is_gone(self) -> None:
        """Node 0 hosts it; of the others we hear nothing any more either."""
        for event in self._lost.values():
            event.set()
