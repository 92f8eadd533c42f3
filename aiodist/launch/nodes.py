"""One agent's tie to the agents of the other nodes, while the job runs: alarms, leases, reports, decisions.

In the agents' store (the workers have another), where <n> is the attempt and <id> a node by arrival:

agents/alive/<id>        a lease that the node renews; gone without a report: the node is lost
agents/restarts          restarts that were taken, in all attempts
agents/stop              the operator's signal that ends the job
agents/<n>/roster        who takes part; grows when a node joins the running group
agents/<n>/turn          counts troubles over all nodes: who was first
agents/<n>/alarm         exists once the attempt is to end: 'failure'; or at once: 'stop', 'regroup'
agents/<n>/idle/<id>     exists while none of the node's workers lives: 'well' if one ended with code 0
agents/<n>/report/<id>   the node's NodeReport, once all its workers have ended
agents/<n>/next          what the head decided to follow: `Next`
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

from aiodist.errors import AiodistError, RendezvousError, WireError
from aiodist.launch.doors import FOREVER, Doors
from aiodist.launch.plain import read
from aiodist.launch.plan import Seat
from aiodist.launch.roster import Roster
from aiodist.launch.verdict import NodeReport, Verdict

if TYPE_CHECKING:
    from aiodist.launch.head import Head
    from aiodist.rendezvous.store import Store

# An agent that dies loses its lease as soon as its connection has ended (see `StoreMachine`); the lease's
# own time is for machines that vanish without a word.
LEASE = 15.0
BEAT = 1.0
ELASTIC = "aiodist/elastic"  # in the workers' store, once an elastic job has begun; see `dist.join`
_OVER = b"over"
_ASKING = 5.0  # seconds for a look into the workers' store


class Others(NamedTuple):
    """What the workers of the other nodes do: one lives; one has ended with code 0."""

    live: bool
    well: bool


class Elastic(NamedTuple):
    """Whether the script can take in a worker now; whether its group has ended, and well."""

    takes_in: bool
    over: bool


@dataclass(frozen=True)
class Next:
    """What follows an attempt.

    Args:
        roster: of the next one; None: the job ends.
        signum: the operator's signal that ends it, after its workers had ended.
        error: why there is no other attempt, though there should be one.
        used: restarts so far.
    """

    roster: Roster | None = None
    signum: int = 0
    error: str = ""
    used: int = 0

    def to_json(self) -> bytes:
        """For the store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Next:
        """Raises `WireError` on anything but `to_json`'s bytes."""
        return read(cls, data, "the head's decision")


@dataclass(frozen=True)
class Tie:
    """What an agent knows for the whole job.

    Args:
        id: this node, by arrival; 0 is the head.
        store_host: where workers reach the stores that the head hosts.
        master_addr: MASTER_ADDR of the workers.
        doors: opens the job's stores.
        host: this node's short name.
    """

    id: int
    store_host: str
    master_addr: str
    doors: Doors
    host: str = ""


@dataclass
class Listener:
    """Who is told of what happens elsewhere; each may be called more than once.

    Args:
        trouble: the attempt ends; takes why, as in the alarm.
        missed: these nodes (ranks) are lost, all that are so far.
    """

    trouble: Callable[[str], None]
    missed: Callable[[tuple[int, ...]], None]


class Nodes:
    """This node's seat, and the others.

    Args:
        tie: what holds for the whole job.
        roster: of the first attempt that this node takes part in.
        store: client of the agents' store; None: one node alone.
        head: the part of the node that decides, where that is this one. Both are closed by `aclose`.
        lease: seconds without a sign of life after which a node is lost.
        beat: seconds between signs of life.
    """

    def __init__(
        self,
        tie: Tie,
        roster: Roster,
        store: Store | None,
        head: Head | None = None,
        *,
        lease: float = LEASE,
        beat: float = BEAT,
    ) -> None:
        self.tie = tie
        self.store = store
        self.head = head
        self.lease = lease
        self._beat = beat
        self._listener: Listener | None = None
        self._pulse: asyncio.Task[None] | None = None
        self._ear: asyncio.Task[None] | None = None
        self._restarts = 0  # where there is no store
        self.alive = {member.id for member in roster.members}  # as of the last beat
        self.changed: Callable[[], None] = lambda: None  # the head's: called when `alive` has changed
        self._enter(roster)

    def _enter(self, roster: Roster) -> None:
        node_rank = roster.node_rank(self.tie.id)
        assert node_rank is not None
        self.roster = roster
        self._lost: dict[int, asyncio.Event] = {}
        self.know(roster)
        # What our workers are told stays as it is when others come, also for one that is started again.
        newcomer = node_rank >= roster.initial
        seen = roster.members if newcomer else roster.members[: roster.initial]
        mine = roster.members[node_rank]
        address = f"[{self.tie.store_host}]" if ":" in self.tie.store_host else self.tie.store_host
        self.seat = Seat(
            node_rank=node_rank,
            nnodes=len(seen),
            first_rank=mine.first_rank,
            nproc=mine.nproc,
            world_size=sum(member.nproc for member in seen),
            master_addr=self.tie.master_addr,
            master_port=roster.master_port,
            store=f"{address}:{roster.store_port}",
            job=self.tie.doors.job,
            secret=self.tie.doors.secret,
            host=self.tie.host,
            newcomer=newcomer,
        )

    def know(self, roster: Roster) -> None:
        """The roster of this attempt, perhaps longer than before."""
        self.roster = roster
        for node, member in enumerate(roster.members):
            if member.id != self.tie.id:
                self._lost.setdefault(node, asyncio.Event())

    def key(self, name: str) -> str:
        """A key of this attempt."""
        return f"agents/{self.roster.attempt}/{name}"

    @property
    def lost(self) -> tuple[int, ...]:
        """Nodes (ranks) that stopped answering."""
        return tuple(node for node, event in self._lost.items() if event.is_set())

    async def watch(self, listener: Listener) -> None:
        """Tell this listener, from now on, when another node fails or is lost."""
        self._listener = listener
        if self.store is None:
            return
        if self._pulse is None:
            self._pulse = asyncio.create_task(self._keep_alive(self.store))
        await self._deafen()
        self._ear = asyncio.create_task(self._hear_alarm(self.store))

    async def _deafen(self) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.cancel()
            await asyncio.gather(ear, return_exceptions=True)

    # -- what this node says --------------------------------------------------------------------

    async def take_turn(self) -> int:
        """The number of our first trouble among those of all nodes, counted from 1."""
        if self.store is not None:
            with suppress(AiodistError, TimeoutError):
                async with asyncio.timeout(self.lease):
                    return await self.store.add(self.key("turn"), 1)
        return 1

    async def alarm(self, why: str = "failure") -> None:
        """Tell the other nodes that the attempt ends. After the first alarm there is no other."""
        await self._put(self.key("alarm"), why.encode())

    async def stop(self, signum: int) -> None:
        """Tell the other nodes that the operator ends the job."""
        if self.head is not None:
            self.head.stop(signum)
        await self._put("agents/stop", b"%d" % signum)
        await self.alarm("stop")

    async def publish(self, report: NodeReport) -> None:
        """Leave our report, or a newer one, for the other nodes."""
        await self._put(self.key(f"report/{self.tie.id}"), report.to_json())

    async def say_idle(self, idle: bool, *, well: bool = False) -> None:
        """Say whether none of our workers lives, and whether one has ended with code 0."""
        key = self.key(f"idle/{self.tie.id}")
        if idle:
            await self._put(key, b"well" if well else b"")
        elif self.store is not None:
            with suppress(AiodistError, TimeoutError):
                async with asyncio.timeout(self.lease):
                    await self.store.delete_key(key)

    async def _put(self, key: str, value: bytes) -> None:
        if self.store is not None:
            with suppress(AiodistError, TimeoutError):
                async with asyncio.timeout(self.lease):
                    await self.store.set(key, value)

    # -- what it asks ---------------------------------------------------------------------------

    async def restarts(self) -> int:
        """How many restarts were taken so far; more than allowed where several took the last one."""
        return await self._add_restarts(0)

    async def take_restart(self) -> int:
        """Take one → its number, counted over all nodes and attempts."""
        return await self._add_restarts(1)

    async def _add_restarts(self, number: int) -> int:
        if self.store is None:
            self._restarts += number
        else:
            with suppress(AiodistError, TimeoutError):
                async with asyncio.timeout(self.lease):
                    self._restarts = await self.store.add("agents/restarts", number)
        return self._restarts

    async def others(self) -> Others:
        """What the workers of the other nodes do."""
        if self.store is None:
            return Others(False, False)
        live = well = False
        with suppress(AiodistError, TimeoutError):
            async with asyncio.timeout(self.lease):
                idle = set(await self.store.list_keys(self.key("idle/")))
                for node in self._lost:
                    key = self.key(f"idle/{self.roster.members[node].id}")
                    if node in self.lost:
                        continue
                    live = live or key not in idle
                    if key in idle and not well:
                        well = await self.store.get(key, timeout=self.lease) == b"well"
        return Others(live, well)

    async def elastic(self) -> Elastic:
        """What the workers have left in their store: whether one can be taken in, and whether all is done."""
        with suppress(AiodistError, TimeoutError):
            async with asyncio.timeout(_ASKING), await self._workers_store() as store:
                if await store.check([ELASTIC]):
                    return Elastic(True, await store.get(ELASTIC, timeout=_ASKING) == _OVER)
        return Elastic(False, False)

    async def _workers_store(self) -> Store:
        return await self.tie.doors.enter(self.tie.store_host, self.roster.store_port, _ASKING)

    async def reports(self, mine: NodeReport) -> list[NodeReport]:
        """All nodes' reports, once all have one or are lost; `mine` is published already."""
        store = self.store
        if store is None:
            return [mine]
        asked: set[int] = set()
        while new := self._lost.keys() - asked:
            asked |= new
            await asyncio.gather(*(self._has_reported(store, node) for node in new))
            await self._read_roster(store)  # the head, which has reported, lets nobody in any more
        reports = [mine]
        for node in sorted(self._lost.keys() - set(self.lost)):
            with suppress(AiodistError, TimeoutError):
                async with asyncio.timeout(self.lease):
                    data = await store.get(self._report_key(node), timeout=self.lease)
                    reports.append(NodeReport.from_json(data))
        return reports

    async def next(self, verdict: Verdict) -> Next:
        """What follows this attempt, whose verdict is this: the head decides, the others hear of it."""
        if self.head is not None:
            return await self.head.decide(self, verdict)
        assert self.store is not None
        try:
            following = Next.from_json(await self.store.get(self.key("next"), timeout=FOREVER))
        except AiodistError:
            self._store_is_gone()
            return Next(used=self._restarts)
        if following.roster is not None and following.roster.node_rank(self.tie.id) is None:
            return Next(error="the other nodes had lost this one, and go on without it", used=following.used)
        return following

    async def enter(self, roster: Roster) -> None:
        """Take the seat of the next attempt; `watch` again."""
        await self._deafen()
        self._listener = None
        self._enter(roster)

    async def aclose(self) -> None:
        """Say goodbye; the host of the store waits, bounded, until the others did."""
        await self._deafen()
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.gather(self._pulse, return_exceptions=True)
        if self.store is not None:
            await self.store.aclose()
        if self.head is not None:
            await self.head.aclose()

    # -- what it hears --------------------------------------------------------------------------

    def _report_key(self, node: int) -> str:
        return self.key(f"report/{self.roster.members[node].id}")

    async def _has_reported(self, store: Store, node: int) -> None:
        """Returns when the node has reported, or is lost."""
        report = asyncio.ensure_future(store.wait([self._report_key(node)], timeout=FOREVER))
        lost = asyncio.ensure_future(self._lost[node].wait())
        try:
            await asyncio.wait({report, lost}, return_when=asyncio.FIRST_COMPLETED)
            if report.done() and report.exception() is not None:
                self._lost[node].set()
        finally:
            report.cancel()
            lost.cancel()
            await asyncio.gather(report, lost, return_exceptions=True)

    async def _hear_alarm(self, store: Store) -> None:
        why = "failure"
        try:
            why = (await store.get(self.key("alarm"), timeout=FOREVER)).decode(errors="replace")
        except RendezvousError:
            self._store_is_gone()
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
        mine = f"agents/alive/{self.tie.id}"
        seen: set[int] = set()
        try:
            while True:
                async with asyncio.timeout(self.lease):
                    keys = set(await store.list_keys("agents/"))
                    if self.head is None and self.tie.id in seen and mine not in keys:
                        # A long sleep, or a broken network: the others gave us up.
                        self._store_is_gone()
                        self._trouble("failure")
                        return
                    await store.set(mine, b"", ttl=self.lease)
                    await self._read_roster(store)
                alive = {int(key.rpartition("/")[2]) for key in keys if key.startswith("agents/alive/")}
                alive.add(self.tie.id)
                seen |= alive
                if alive != self.alive:
                    self.alive = alive
                    self.changed()
                self._miss(seen - alive, keys)
                await asyncio.sleep(self._beat)
        except (RendezvousError, TimeoutError):
            self._store_is_gone()
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

    def _store_is_gone(self) -> None:
        """Node 0 hosts it; of the others we hear nothing any more either."""
        for event in self._lost.values():
            event.set()
