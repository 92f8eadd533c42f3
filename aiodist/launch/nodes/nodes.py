"""The other nodes, as one agent sees them while the job runs: what it says to their agents, and asks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aiodist.base.errors import AiodistError, WireError
from aiodist.launch.nodes.local_node import LocalNode
from aiodist.launch.nodes.messages import FAILURE, Elastic, Next, Workers, number_in
from aiodist.launch.nodes.node_monitor import BEAT, Listener, NodeMonitor
from aiodist.launch.nodes.roster import Roster
from aiodist.launch.verdict import NodeReport, Verdict

if TYPE_CHECKING:
    from aiodist.rendezvous.store import Store

ELASTIC = "aiodist/elastic"  # in the workers' store, once an elastic job has begun; see `dist.join`
FINISHED = "aiodist/finished/"  # there, and a rank: it has ended well; for a worker that comes back
MEMBERS = f"{ELASTIC}/"  # there, and a rank: what its process is, once it was admitted
_OVER, _IS_MEMBER, _HAS_LEFT = b"over", b"in", b"left"
_ASKING = 5.0  # seconds for a look into the workers' store
T = TypeVar("T")


class Decider(Protocol):
    """The part of a node that decides; see `Head`, which is above."""

    code: int

    def attend(self, nodes: Nodes) -> None:
        """Note that the attempt has begun."""

    def over(self) -> None:
        """Note that our workers have ended."""

    def stop(self, signum: int) -> None:
        """End the job, as the operator wishes."""

    async def decide(self, nodes: Nodes, verdict: Verdict) -> Next:
        """Decide what follows an attempt."""

    async def aclose(self, lost: Sequence[int] = ()) -> None:
        """Close what it hosts, once the others have left, but for those that are lost."""


class Nodes:
    """This node's place, and the other nodes.

    Args:
        local: what holds for the whole job.
        roster: of the first attempt that this node takes part in.
        store: client of the agents' store; None: one node alone.
        head: the part of the node that decides, where that is this one. Both are closed by `aclose`.
        lease: seconds without a sign of life after which a node is lost.
        beat: seconds between signs of life.
    """

    def __init__(
        self,
        local: LocalNode,
        roster: Roster,
        store: Store | None,
        head: Decider | None = None,
        *,
        lease: float = 15.0,
        beat: float = BEAT,
    ) -> None:
        self.local = local
        self.store = store
        self.head = head
        self.lease = lease
        self.monitor = NodeMonitor(local.id, roster, store, leads=head is not None, lease=lease, beat=beat)
        self.place = local.place(roster)
        self._restarts = 0  # where there is no store

    @property
    def roster(self) -> Roster:
        """The nodes of this attempt; grows when a node joins the running group."""
        return self.monitor.roster

    @property
    def lost(self) -> tuple[int, ...]:
        """Nodes (ranks) that stopped answering."""
        return self.monitor.lost

    def key(self, name: str) -> str:
        """A key of this attempt."""
        return self.monitor.key(name)

    async def watch(self, listener: Listener) -> None:
        """Tell this listener, from now on, when another node fails or is lost."""
        await self.monitor.watch(listener)

    # -- what this node says --------------------------------------------------------------------

    async def take_turn(self) -> int:
        """The number of our first trouble among those of all nodes, counted from 1."""
        return await self._ask(lambda store: store.add(self.key("turn"), 1), 1)

    async def alarm(self, why: str = FAILURE) -> None:
        """Tell the other nodes that the attempt ends, and why (`messages`). After the first alarm there is no
        other."""
        await self._put(self.key("alarm"), why.encode())

    async def stop(self, signum: int) -> None:
        """Tell the other nodes that the operator ends the job."""
        if self.head is not None:
            self.head.stop(signum)
        await self._put("agents/stop", b"%d" % signum)
        await self.alarm("interrupt" if signum == signal.SIGINT else "stop")

    async def publish(self, report: NodeReport) -> None:
        """Leave our report, or a newer one, for the other nodes."""
        await self._put(self.key(f"report/{self.local.id}"), report.to_json())

    async def say_workers(self, workers: Workers) -> None:
        """Say which of our workers live, and whether one has ended with code 0."""
        await self._put(self.key(f"workers/{self.local.id}"), workers.to_json())

    async def say_finished(self, ranks: Sequence[int]) -> None:
        """Tell the workers that these have ended well, for one that comes back and would wait for them."""
        with suppress(AiodistError, TimeoutError):
            async with asyncio.timeout(_ASKING), await self._workers_store() as store:
                await store.multi_set([f"{FINISHED}{rank}" for rank in ranks], [b"1"] * len(ranks))

    async def forget_member(self, rank: int) -> None:
        """Forget that a worker was a member: it is started again, and has yet to be admitted."""
        with suppress(AiodistError, TimeoutError):
            async with asyncio.timeout(_ASKING), await self._workers_store() as store:
                await store.set(f"{MEMBERS}{rank}", b"")

    async def _put(self, key: str, value: bytes) -> None:
        await self._ask(lambda store: store.set(key, value), None)

    async def _ask(self, question: Callable[[Store], Coroutine[Any, Any, T]], otherwise: T) -> T:
        """Ask the agents' store for something; `otherwise` where there is none, or node 0 is lost with it."""
        if self.store is not None and 0 not in self.lost:
            with suppress(AiodistError, TimeoutError):
                async with asyncio.timeout(self.lease):
                    return await question(self.store)
        return otherwise

    # -- what it asks ---------------------------------------------------------------------------

    async def restarts(self) -> int:
        """The number of restarts taken so far; more than allowed where several took the last one."""
        return await self._add_restarts(0)

    async def take_restart(self) -> int:
        """Take one → its number, counted over all nodes and attempts."""
        return await self._add_restarts(1)

    async def _add_restarts(self, number: int) -> int:
        if self.store is None:
            self._restarts += number
        self._restarts = await self._ask(lambda store: store.add("agents/restarts", number), self._restarts)
        return self._restarts

    async def others(self) -> Workers:
        """Look what the workers of the other nodes do; those of lost nodes do nothing any more."""
        live: list[int] = []
        well = False
        if self.store is not None and 0 not in self.lost:
            with suppress(AiodistError, TimeoutError):
                async with asyncio.timeout(self.lease):
                    told = set(await self.store.list_keys(self.key("workers/")))
                    for node in self.monitor.others - set(self.lost):
                        member = self.roster.members[node]
                        key = self.key(f"workers/{member.id}")
                        if key in told:
                            its = Workers.from_json(await self.store.get(key, timeout=self.lease))
                            live += its.live
                            well = well or its.well
                        else:
                            live += range(member.first_rank, member.first_rank + member.nproc)
        return Workers(tuple(live), well)

    async def elastic(self) -> Elastic:
        """Look in the workers' store whether one can be taken in, by whom, and whether all is done."""
        with suppress(AiodistError, TimeoutError):
            async with asyncio.timeout(_ASKING), await self._workers_store() as store:
                if await store.check([ELASTIC]):
                    found = await store.list_keys(MEMBERS)
                    keys = [key for key in found if number_in(key, MEMBERS) is not None]
                    over, *said = await store.multi_get([ELASTIC, *keys], timeout=_ASKING)
                    seats = {int(key.removeprefix(MEMBERS)): one for key, one in zip(keys, said, strict=True)}
                    members = frozenset(rank for rank, one in seats.items() if one == _IS_MEMBER)
                    left = frozenset(rank for rank, one in seats.items() if one == _HAS_LEFT)
                    return Elastic(True, over == _OVER, members, left)
        return Elastic(False, False)

    async def _workers_store(self) -> Store:
        access, port = self.local.access.launched(self.roster.launch).of_workers, self.roster.store_port
        return await access.enter(self.local.store_host, port, _ASKING)

    async def reports(self, mine: NodeReport) -> list[NodeReport]:
        """All nodes' reports, once all have one or are lost; `mine` is published already.

        A node that has lost node 0 hears of nobody any more, and has its own alone.
        """
        store = self.store
        if store is None:
            return [mine]
        await self.monitor.all_reported()
        reports = [mine]
        for node in sorted(self.monitor.others - set(self.lost)) if 0 not in self.lost else ():
            with suppress(AiodistError, TimeoutError):
                async with asyncio.timeout(self.lease):
                    data = await store.get(self.monitor.report_key(node), timeout=self.lease)
                    reports.append(NodeReport.from_json(data))
        return reports

    async def next(self, verdict: Verdict) -> Next:
        """Learn what follows this attempt, whose verdict is this: the head decides, the others are told."""
        if self.head is not None:
            return await self.head.decide(self, verdict)
        try:
            said = await self.monitor.decision()
            following = Next(used=self._restarts) if said is None else Next.from_json(said)
        except WireError:
            self.monitor.lose_touch()
            return Next(used=self._restarts)
        if following.roster is not None and following.roster.node_rank(self.local.id) is None:
            return Next(error="the other nodes had lost this one, and go on without it", used=following.used)
        return following

    async def enter(self, roster: Roster) -> None:
        """Take the place of the next attempt; `watch` again."""
        await self.monitor.enter(roster)
        self.place = self.local.place(roster)

    async def aclose(self) -> None:
        """Say goodbye; the host of the store waits, bounded, until the others did."""
        await self.monitor.aclose()
        if self.store is not None:
            await self.store.aclose()
        if self.head is not None:
            await self.head.aclose(self.lost)
