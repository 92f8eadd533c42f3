"""The other nodes, as one agent sees them while the job runs: what it says, asks and is told.

It is told alarms, leases, longer rosters and losses. A node whose lease has run out without a report is lost.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aiodist.base.errors import AiodistError, RendezvousError, WireError
from aiodist.launch.nodes.local_node import LocalNode
from aiodist.launch.nodes.messages import FAILURE, Elastic, Next, Workers, number_in
from aiodist.launch.nodes.roster import Roster
from aiodist.launch.nodes.store_access import FOREVER
from aiodist.launch.verdict import NodeReport, Verdict
from aiodist.net.tasks import cancel

if TYPE_CHECKING:
    from aiodist.rendezvous.store import Store

T = TypeVar("T")

ELASTIC = "aiodist/elastic"  # in the workers' store, once an elastic job has begun; see `dist.join`
FINISHED = "aiodist/finished/"  # there, and a rank: it has ended well; for a worker that comes back
MEMBERS = f"{ELASTIC}/"  # there, and a rank: what its process is, once it was admitted
_OVER, _IS_MEMBER, _HAS_LEFT = b"over", b"in", b"left"
_ASKING = 5.0  # seconds for a look into the workers' store

BEAT = 1.0
_HEAD = 0  # the id of its node
_ALIVE = "agents/alive/"


@dataclass
class Listener:
    """The functions that are told of what happens elsewhere; each may be called more than once.

    Args:
        trouble: the attempt ends; takes why, as in the alarm.
        missed: these nodes (ranks) are lost, all that are so far.
    """

    trouble: Callable[[str], None]
    missed: Callable[[tuple[int, ...]], None]


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
        lease: seconds without a sign of life after which a node is lost. It is for machines that vanish
            without a message: that of an agent which dies ends with its connection (see `StoreMachine`).
        beat: seconds between signs of life.

    Attributes:
        roster: the nodes of this attempt; grows when a node joins the running group.
        alive: ids of those that had renewed their lease at the last beat.
        changed: called when `alive` has changed; the head's.
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
        self.place = local.place(roster)
        self.alive = {member.id for member in roster.members}
        self.changed: Callable[[], None] = lambda: None
        self._beat = beat
        self._listener: Listener | None = None
        self._pulse: asyncio.Task[None] | None = None
        self._alarm_watch: asyncio.Task[None] | None = None
        self._restarts = 0  # where there is no store
        self._begin(roster)

    @staticmethod
    async def expect(store: Store, id: int, seconds: float) -> None:
        """Count a node as alive for so many seconds, until its own signs of life come. It must be so before
        the node is on a roster: one without any is lost.

        Args:
            store: the agents'. The sign ends with the client, too, that leaves it.
            id: of the node.
            seconds: at most.
        """
        await store.set(f"{_ALIVE}{id}", b"", ttl=seconds)

    def _begin(self, roster: Roster) -> None:
        self._lost: dict[int, asyncio.Event] = {}
        self.know(roster)

    def know(self, roster: Roster) -> None:
        """Take the roster of this attempt, perhaps longer than before."""
        self.roster = roster
        for node, member in enumerate(roster.members):
            if member.id != self.local.id:
                self._lost.setdefault(node, asyncio.Event())

    def key(self, name: str) -> str:
        """A key of this attempt."""
        return f"agents/{self.roster.attempt}/{name}"

    def _report_key(self, node: int) -> str:
        """The key of a node's (rank's) report."""
        return self.key(f"report/{self.roster.members[node].id}")

    @property
    def lost(self) -> tuple[int, ...]:
        """Nodes (ranks) that stopped answering; node 0, with the store, perhaps only to this one."""
        return tuple(node for node, event in self._lost.items() if event.is_set())

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

    # -- what it is told ------------------------------------------------------------------------

    async def watch(self, listener: Listener) -> None:
        """Tell this listener, from now on, when another node fails or is lost; and which were lost before."""
        self._listener = listener
        if self.store is None:
            return
        if self.lost:
            listener.missed(self.lost)
        if self._pulse is None or self._pulse.done():
            self._pulse = asyncio.create_task(self._keep_alive(self.store))
        await self._stop_watch()
        self._alarm_watch = asyncio.create_task(self._watch_alarm(self.store))

    async def _all_reported(self, store: Store) -> None:
        """Wait until every other node has reported, or is lost."""
        asked: set[int] = set()
        while new := self._lost.keys() - asked:
            asked |= new
            await asyncio.gather(*(self._has_reported(store, node) for node in new))
            # The head, which has reported, lets nobody in any more.
            await self._unless_lost(0, self._read_roster(store))

    def _lose_touch(self) -> None:
        """Count node 0 as lost: the store is gone, or gave us up, and of the others we learn no more."""
        for node in [0] if 0 in self._lost else self._lost:
            self._lost[node].set()

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
                    for node in self._lost.keys() - set(self.lost):
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
        await self._all_reported(store)
        reports = [mine]
        for node in sorted(self._lost.keys() - set(self.lost)) if 0 not in self.lost else ():
            with suppress(AiodistError, TimeoutError):
                async with asyncio.timeout(self.lease):
                    data = await store.get(self._report_key(node), timeout=self.lease)
                    reports.append(NodeReport.from_json(data))
        return reports

    async def next(self, verdict: Verdict) -> Next:
        """Learn what follows this attempt, whose verdict is this: the head decides, the others are told."""
        if self.head is not None:
            return await self.head.decide(self, verdict)
        assert self.store is not None
        try:
            said = await self._unless_lost(0, self.store.get(self.key("next"), timeout=FOREVER))
            following = Next(used=self._restarts) if said is None else Next.from_json(said)
        except WireError:
            self._lose_touch()
            return Next(used=self._restarts)
        if following.roster is not None and following.roster.node_rank(self.local.id) is None:
            return Next(error="the other nodes had lost this one, and go on without it", used=following.used)
        return following

    async def enter(self, roster: Roster) -> None:
        """Take the place of the next attempt; `watch` again."""
        await self._stop_watch()
        self._listener = None
        self._begin(roster)
        self.place = self.local.place(roster)

    async def aclose(self) -> None:
        """Say goodbye; the host of the store waits, bounded, until the others did."""
        await self._stop_watch()
        await cancel(self._pulse)
        if self.store is not None:
            await self.store.aclose()
        if self.head is not None:
            await self.head.aclose(self.lost)

    async def _stop_watch(self) -> None:
        task, self._alarm_watch = self._alarm_watch, None
        await cancel(task)

    async def _has_reported(self, store: Store, node: int) -> None:
        await self._unless_lost(node, store.wait([self._report_key(node)], timeout=FOREVER))

    async def _unless_lost(self, node: int, asked: Coroutine[Any, Any, T]) -> T | None:
        """Wait for the store's answer; None where the node in question is lost, or node 0 with the store."""
        answer = asyncio.ensure_future(asked)
        losses = [asyncio.ensure_future(self._lost[n].wait()) for n in {node, 0} & self._lost.keys()]
        try:
            await asyncio.wait({answer, *losses}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                return None
            return answer.result()
        except AiodistError:
            self._lose_touch()
            return None
        finally:
            await cancel(answer, *losses)

    async def _watch_alarm(self, store: Store) -> None:
        why = "failure"
        try:
            why = (await store.get(self.key("alarm"), timeout=FOREVER)).decode(errors="replace")
        except RendezvousError:
            self._lose_touch()
        self._trouble(why)

    def _trouble(self, why: str) -> None:
        if self._listener is not None:
            self._listener.trouble(why)

    async def _read_roster(self, store: Store) -> None:
        key = self.key("roster")
        with suppress(RendezvousError, WireError):
            if not await store.check([key]):
                return
            roster = Roster.from_json(await store.get(key, timeout=self.lease))
            if roster.attempt == self.roster.attempt and len(roster.members) > len(self.roster.members):
                self.know(roster)

    async def _keep_alive(self, store: Store) -> None:
        """Renew our lease, and see who has not renewed theirs."""
        mine = f"{_ALIVE}{self.local.id}"
        seen: set[int] = set()
        try:
            while True:
                try:
                    async with asyncio.timeout(self.lease):
                        # Each of them, but the head, had a sign of life before it was on the roster. One
                        # without any has died, perhaps before we came, and never was alive when we looked.
                        listed = {member.id for member in self.roster.members} - {_HEAD}
                        keys = set(await store.list_keys("agents/"))
                        if self.head is None and self.local.id in seen and mine not in keys:
                            # A long sleep, or a broken network: the others gave us up.
                            self._lose_touch()
                            self._trouble("failure")
                            return
                        await store.set(mine, b"", ttl=self.lease)
                        await self._read_roster(store)
                except TimeoutError:
                    if self.head is None:
                        raise
                    continue  # the head hosts the store: it was itself stopped, and looks who is left
                alive = {id for key in keys if (id := number_in(key, _ALIVE)) is not None}
                alive.add(self.local.id)
                seen |= alive
                if alive != self.alive:
                    self.alive = alive
                    self.changed()
                self._miss((seen | listed) - alive, keys)
                await asyncio.sleep(self._beat)
        except (AiodistError, TimeoutError):
            self._lose_touch()
            self._trouble("failure")

    def _miss(self, silent: set[int], keys: set[str]) -> None:
        news = False
        for node, event in self._lost.items():
            gone = self.roster.members[node].id in silent and self._report_key(node) not in keys
            if gone and not event.is_set():
                event.set()
                news = True
        if news and self._listener is not None:
            self._listener.missed(self.lost)
