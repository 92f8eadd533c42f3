"""The node that decides: it hosts the stores, lets nodes in, and says what follows an attempt.

It is node 0 of the first attempt, and its loss ends the job. The workers of each attempt get a store of
their own, so that nothing which a dead attempt left behind is in the way of the next.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiodist.base.errors import RendezvousError, RendezvousTimeout, UsageError, WireError
from aiodist.launch.config import LaunchConfig
from aiodist.launch.nodes.admission import Admission
from aiodist.launch.nodes.messages import Next
from aiodist.launch.nodes.nodes import Nodes
from aiodist.launch.nodes.ports import reserve_port
from aiodist.launch.nodes.roster import Member, Roster
from aiodist.launch.nodes.store_access import FOREVER, StoreAccess
from aiodist.launch.restarts import RestartDelay, after, ready
from aiodist.launch.verdict import Verdict
from aiodist.net.tasks import cancel, settle
from aiodist.net.wire.typed import read
from aiodist.net.within import happens

if TYPE_CHECKING:
    from aiodist.rendezvous.client import TcpStore
    from aiodist.rendezvous.server import StoreServer
    from aiodist.rendezvous.store import Store

logger = logging.getLogger("aiodist.launch.head")
_LINGER = 5.0  # seconds for the other agents to say goodbye
_LINGER_OF_FEWER = 1.0  # where some never will

PATIENCE = 10.0
"""Seconds before we say whom we wait for."""

Say = Callable[[str], None]
"""A function that shows one line to the operator."""


class Head:
    """The node that decides.

    Args:
        config: this node's.
        me: its card.
        access: opens the agents' stores.
        host: the address to listen on.
        say: shows one line to the operator.
    """

    def __init__(self, config: LaunchConfig, me: Member, access: StoreAccess, host: str, say: Say) -> None:
        self._config = config
        self._me = me
        self._access = access.launched(secrets.token_hex(16))
        self._host = host
        self._say = say
        self._news = asyncio.Event()  # for `_muster`
        self._arrivals = asyncio.Event()  # for `_attend`
        self._stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._backoff = RestartDelay()
        self._began = 0.0
        self._reserved: socket.socket | None = None  # MASTER_PORT, until the workers have it
        self._workers_store: StoreServer | None = None
        self._agents_store: StoreServer | None = None
        self._admission: Admission | None = None
        self._attending: asyncio.Task[None] | None = None
        self._running = False
        self._regroup = False
        self.code = 1  # the job's, for nodes that wait for admission when it ends

    def _changed(self) -> None:
        """Note that a node came, or is gone."""
        self._news.set()
        self._arrivals.set()

    # -- the first attempt ----------------------------------------------------------------------

    async def alone(self) -> Roster:
        """Form the roster of a job of one node."""
        return await self._form([self._me], 0, 0)

    async def host(self, server: StoreServer, book: TcpStore, local: str) -> tuple[Roster, Store]:
        """Wait for the other nodes → the roster, and a client of the agents' store.

        Args:
            server: the admission store; ours from here on.
            book: a client of it; likewise.
            local: where we reach a store of ours.
        """
        self._admission = admission = Admission(self._config, server, book, self._changed)
        admission.claim(self._me)
        self._agents_store = await self._access.serve(self._host)
        try:
            members = await self._muster(lambda: [self._me], first=True)
        except (UsageError, RendezvousError) as error:
            await admission.refuse_all(f"node 0 gave up: {error}")
            raise
        store = await self._access.enter(
            *(local, self._agents_store.port, self._config.meet_timeout),
            instance=self._agents_store.instance,
        )
        roster = await self._form(members, 0, 0)
        await self._publish(store, roster)
        if not self._config.admits_later:
            size = len(roster.members)
            await admission.refuse_all(f"the job's {size} nodes are complete already; raise --nnodes")
            await store.barrier("agents/here", size, 0, timeout=self._config.meet_timeout)
            await admission.aclose()
            self._admission = None
        return roster, store

    def attend(self, nodes: Nodes) -> None:
        """Admit nodes that come, now that the attempt has begun."""
        self._running = True
        nodes.changed = self._changed
        if self._admission is not None and self._attending is None:
            self._attending = asyncio.create_task(self._attend(nodes, self._admission))
        self._changed()

    async def _form(self, members: list[Member], attempt: int, restarts: int) -> Roster:
        """Give them their places, and open a store for their workers."""
        if self._workers_store is not None:
            await self._workers_store.aclose()
        self._workers_store = await self._access.of_workers.serve(self._host)
        port = self._config.master_port
        if port is None or self._config.admits_later:  # then it is the admission store's
            self._keep_none()
            self._reserved = reserve_port(self._host)
            port = self._reserved.getsockname()[1]
        self._began = asyncio.get_running_loop().time()
        self._regroup = False
        logger.debug("attempt %d, of %d nodes: %s", attempt, len(members), members)
        return Roster.of(
            members,
            attempt=attempt,
            restarts=restarts,
            store_port=self._workers_store.port,
            master_port=port,
            launch=self._access.launch,
        )

    def _keep_none(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    async def _publish(self, store: Store, roster: Roster) -> None:
        """Publish the roster, and admit those on it that wait."""
        assert self._agents_store is not None
        waiting = self._admission.waiting if self._admission is not None else {}
        admitted = [member for member in roster.members if member.id in waiting]
        for member in admitted:  # a node that never comes is missed like one that falls silent
            await Nodes.expect(store, member.id, self._config.node_timeout)
        await store.set(f"agents/{roster.attempt}/roster", roster.to_json())
        for member in admitted:
            assert self._admission is not None
            await self._admission.admit(member, self._agents_store, roster.attempt)

    # -- waiting for nodes ----------------------------------------------------------------------

    async def _muster(self, present: Callable[[], list[Member]], *, first: bool) -> list[Member]:
        """Wait until an attempt can begin → its members.

        Args:
            present: who is here already.
            first: wait for more than MIN nodes, and give up where command lines disagree.
        """
        config, loop = self._config, asyncio.get_running_loop()
        least, most = config.nnodes, config.most
        call = config.last_call if first else 0.0
        deadline = loop.time() + config.meet_timeout
        patience = loop.time() + PATIENCE
        enough_since: float | None = None
        while True:
            self._news.clear()
            here = present()
            if self._admission is not None:
                if self._admission.complaint and first:
                    raise UsageError(self._admission.complaint, hint="Give every agent the same --nnodes")
                here += self._admission.waiting.values()
            now = loop.time()
            enough = len(here) >= least
            enough_since = None if not enough else now if enough_since is None else enough_since
            if ready(len(here), now, least=least, most=most, enough_since=enough_since, call=call):
                return here[:most]
            if not enough and now >= deadline:
                raise self._too_few(here)
            until = enough_since + call if enough_since is not None else deadline
            if not enough and patience:
                if now >= patience:
                    patience = 0.0
                    self._say(f"waiting for {self._who(here)} at {config.meeting_place}")
                else:
                    until = min(until, patience)
            await happens(self._news, until - now)

    def _missing(self, here: list[Member]) -> list[int]:
        members = Roster.of(here).members
        taken = {m.wanted if m.wanted is not None else rank for rank, m in enumerate(members)}
        return sorted(set(range(self._config.nnodes)) - taken)

    def _who(self, here: list[Member]) -> str:
        """'nodes 1, 2 of 3'; of a range only numbers are known."""
        config = self._config
        if config.most > config.nnodes:
            return f"more nodes: {len(here)} of at least {config.nnodes}"
        missing = self._missing(here)
        several = "nodes" if len(missing) > 1 else "node"
        return f"{several} {', '.join(map(str, missing))} of {config.nnodes}"

    def _too_few(self, here: list[Member]) -> RendezvousTimeout:
        config = self._config
        where = f"{config.meeting_place} within {config.meet_timeout:g} s"
        hint = "Start an agent there with the same --nnodes, --master-addr and --master-port"
        if config.most > config.nnodes:
            came = f"only {len(here)} of at least {config.nnodes} nodes came to {where}"
            return RendezvousTimeout(came, hint="Start more agents, or lower MIN in --nnodes MIN:MAX")
        return RendezvousTimeout(
            f"{self._who(here)} did not come to {where}", missing=self._missing(here), hint=hint
        )

    async def _attend(self, nodes: Nodes, admission: Admission) -> None:
        """Let nodes that come while an attempt runs join it, or have all begin again."""
        store = nodes.store
        assert store is not None
        spare = False
        while True:
            await self._arrivals.wait()
            self._arrivals.clear()
            if not self._running:  # those who come are `_muster`'s
                continue
            for node in nodes.lost:
                admission.leave(nodes.roster.members[node].id)
            living = len(nodes.roster.members) - len(nodes.lost)
            if not admission.waiting or self._regroup:
                continue
            if living >= self._config.most:
                if not spare:
                    self._say(f"a node waits: the job has {living} nodes, and takes no more")
                spare = True
                continue
            spare = False
            script = await nodes.elastic()
            if not self._running or not admission.waiting or script.over:
                continue
            newcomer = next(iter(admission.waiting.values()))
            if script.takes_in:
                await nodes.expect(store, newcomer.id, self._config.node_timeout)
                nodes.know(nodes.roster.grown(newcomer))
                await self._publish(store, nodes.roster)
                self._say(f"{newcomer.host} joins the job with {newcomer.nproc} worker(s)")
                self._arrivals.set()  # perhaps there are more
            else:
                self._regroup = True
                self._say(f"{newcomer.host} joins the job: all workers begin again with {living + 1} nodes")
                await nodes.alarm("regroup")

    # -- what follows an attempt ----------------------------------------------------------------

    def stop(self, signum: int) -> None:
        """End the job, as the operator wishes."""
        settle(self._stopped, signum)

    def over(self) -> None:
        """Admit nobody any more: our workers have ended."""
        self._running = False

    async def decide(self, nodes: Nodes, verdict: Verdict) -> Next:
        """Decide what follows the attempt that has ended with this verdict; all agents are told."""
        self._running = False
        used, began = await nodes.restarts(), nodes.roster.restarts
        limit = self._config.max_restarts
        step = after(verdict, began=began, used=used, limit=limit, regroup=self._regroup)
        logger.debug("code %d, lost %s, %d of %d restarts: %s", verdict.code, verdict.lost, used, limit, step)
        following = Next(used=min(used, limit))
        if step.again:
            following = await self._unless_stopped(nodes, self._again(nodes, step.costs, used))
        if nodes.store is not None:
            with suppress(RendezvousError):
                if following.roster is not None:
                    await self._publish(nodes.store, following.roster)
                await nodes.store.set(nodes.key("next"), following.to_json())
        return following

    async def _again(self, nodes: Nodes, costs: bool, used: int) -> Next:
        if costs:
            used = await nodes.take_restart()
            delay = self._backoff.delay(asyncio.get_running_loop().time() - self._began)
            if delay:
                self._say(f"it failed soon after its start; waiting {delay:g} s before the next")
                await asyncio.sleep(delay)
        try:
            members = await self._muster(lambda: self._left(nodes), first=False)
        except RendezvousTimeout as error:
            return Next(error=str(error), used=used)
        return Next(await self._form(members, nodes.roster.attempt + 1, used), used=used)

    def _left(self, nodes: Nodes) -> list[Member]:
        """The members that are still there."""
        gone = set(nodes.lost)
        left = []
        for node, member in enumerate(nodes.roster.members):
            if node in gone or (nodes.store is not None and member.id not in nodes.alive):
                if self._admission is not None:
                    self._admission.leave(member.id)
            else:
                left.append(member)
        return left

    async def _unless_stopped(self, nodes: Nodes, again: Coroutine[Any, Any, Next]) -> Next:
        """`again`, or the end, where the operator of any node says so meanwhile."""
        task = asyncio.create_task(again)
        waits: set[asyncio.Future[Any]] = {task, self._stopped}
        remote: asyncio.Future[bytes] | None = None
        if nodes.store is not None:
            remote = asyncio.ensure_future(nodes.store.get("agents/stop", timeout=FOREVER))
            waits.add(remote)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.done():
                return Next(signum=self._stopped.result(), used=await nodes.restarts())
            if remote is not None and remote.done() and remote.exception() is None:
                return Next(signum=_signal(remote.result()), used=await nodes.restarts())
            return await task
        finally:
            await cancel(task, remote)

    async def aclose(self, lost: Sequence[int] = ()) -> None:
        """Close the stores; the other agents get time to leave, less where some of them are lost."""
        await cancel(self._attending)
        self._keep_none()
        if self._admission is not None:
            await self._admission.aclose(self.code)
        if self._workers_store is not None:
            await self._workers_store.aclose()
        if self._agents_store is not None:
            await self._agents_store.aclose(_LINGER_OF_FEWER if lost else _LINGER)


def _signal(said: bytes) -> int:
    """The operator's signal, as an agent has left it; SIGTERM where it is unreadable: the job is to end."""
    with suppress(WireError):
        if 0 < (signum := read(int, said, "a signal")) < signal.NSIG:
            return signum
    return signal.SIGTERM
