"""The node monitor: alarms, leases, longer rosters and losses that one agent learns of while the job runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from aiodist.base.errors import AiodistError, RendezvousError, WireError
from aiodist.launch.nodes.messages import number_in
from aiodist.launch.nodes.roster import Roster
from aiodist.launch.nodes.store_access import FOREVER
from aiodist.net.tasks import cancel

if TYPE_CHECKING:
    from aiodist.rendezvous.store import Store

BEAT = 1.0
_ALIVE = "agents/alive/"
T = TypeVar("T")


@dataclass
class Listener:
    """The functions that are told of what happens elsewhere; each may be called more than once.

    Args:
        trouble: the attempt ends; takes why, as in the alarm.
        missed: these nodes (ranks) are lost, all that are so far.
    """

    trouble: Callable[[str], None]
    missed: Callable[[tuple[int, ...]], None]


class NodeMonitor:
    """The other nodes, as one node sees them.

    Args:
        id: this node, by arrival.
        roster: of the first attempt that it takes part in.
        store: the agents'; None: one node alone. The caller closes it.
        leads: this is the head, which nobody gives up and stays.
        lease: seconds without a sign of life after which a node is lost. It is for machines that vanish
            without a message: that of an agent which dies ends with its connection (see `StoreMachine`).
        beat: seconds between signs of life.
    """

    def __init__(
        self, id: int, roster: Roster, store: Store | None, *, leads: bool, lease: float, beat: float
    ) -> None:
        self._id = id
        self._store = store
        self._leads = leads
        self._lease = lease
        self._beat = beat
        self._listener: Listener | None = None
        self._pulse: asyncio.Task[None] | None = None
        self._alarm_watch: asyncio.Task[None] | None = None
        self.alive = {member.id for member in roster.members}  # as of the last beat
        self.changed: Callable[[], None] = lambda: None  # the head's: called when `alive` has changed
        self._begin(roster)

    def _begin(self, roster: Roster) -> None:
        self._lost: dict[int, asyncio.Event] = {}
        self.know(roster)

    def know(self, roster: Roster) -> None:
        """Take the roster of this attempt, perhaps longer than before."""
        self.roster = roster
        for node, member in enumerate(roster.members):
            if member.id != self._id:
                self._lost.setdefault(node, asyncio.Event())

    def key(self, name: str) -> str:
        """A key of this attempt."""
        return f"agents/{self.roster.attempt}/{name}"

    def report_key(self, node: int) -> str:
        """The key of a node's (rank's) report."""
        return self.key(f"report/{self.roster.members[node].id}")

    @property
    def others(self) -> set[int]:
        """The other nodes (ranks) of this attempt, also those that are lost."""
        return set(self._lost)

    @property
    def lost(self) -> tuple[int, ...]:
        """Nodes (ranks) that stopped answering; node 0, with the store, perhaps only to this one."""
        return tuple(node for node, event in self._lost.items() if event.is_set())

    async def watch(self, listener: Listener) -> None:
        """Tell this listener, from now on, when another node fails or is lost."""
        self._listener = listener
        if self._store is None:
            return
        if self._pulse is None or self._pulse.done():
            self._pulse = asyncio.create_task(self._keep_alive(self._store))
        await self._stop_watch()
        self._alarm_watch = asyncio.create_task(self._watch_alarm(self._store))

    async def all_reported(self) -> None:
        """Wait until every other node has reported, or is lost."""
        store = self._store
        if store is None:
            return
        asked: set[int] = set()
        while new := self.others - asked:
            asked |= new
            await asyncio.gather(*(self._has_reported(store, node) for node in new))
            # The head, which has reported, lets nobody in any more.
            await self._unless_lost(0, self._read_roster(store))

    async def enter(self, roster: Roster) -> None:
        """Take part in the next attempt; `watch` again."""
        await self._stop_watch()
        self._listener = None
        self._begin(roster)

    async def decision(self) -> bytes | None:
        """Wait for what node 0 says that follows this attempt; None: it is lost, or was before it said so."""
        assert self._store is not None
        return await self._unless_lost(0, self._store.get(self.key("next"), timeout=FOREVER))

    def lose_touch(self) -> None:
        """Count node 0 as lost: the store is gone, or gave us up, and of the others we learn no more."""
        for node in [0] if 0 in self._lost else self._lost:
            self._lost[node].set()

    async def aclose(self) -> None:
        """Stop watching, and let our lease run out."""
        await self._stop_watch()
        await cancel(self._pulse)

    async def _stop_watch(self) -> None:
        task, self._alarm_watch = self._alarm_watch, None
        await cancel(task)

    async def _has_reported(self, store: Store, node: int) -> None:
        await self._unless_lost(node, store.wait([self.report_key(node)], timeout=FOREVER))

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
            self.lose_touch()
            return None
        finally:
            await cancel(answer, *losses)

    async def _watch_alarm(self, store: Store) -> None:
        why = "failure"
        try:
            why = (await store.get(self.key("alarm"), timeout=FOREVER)).decode(errors="replace")
        except RendezvousError:
            self.lose_touch()
        self._trouble(why)

    def _trouble(self, why: str) -> None:
        if self._listener is not None:
            self._listener.trouble(why)

    async def _read_roster(self, store: Store) -> None:
        key = self.key("roster")
        with suppress(RendezvousError, WireError):
            if not await store.check([key]):
                return
            roster = Roster.from_json(await store.get(key, timeout=self._lease))
            if roster.attempt == self.roster.attempt and len(roster.members) > len(self.roster.members):
                self.know(roster)

    async def _keep_alive(self, store: Store) -> None:
        """Renew our lease, and see who has not renewed theirs."""
        mine = f"{_ALIVE}{self._id}"
        seen: set[int] = set()
        try:
            while True:
                try:
                    async with asyncio.timeout(self._lease):
                        keys = set(await store.list_keys("agents/"))
                        if not self._leads and self._id in seen and mine not in keys:
                            # A long sleep, or a broken network: the others gave us up.
                            self.lose_touch()
                            self._trouble("failure")
                            return
                        await store.set(mine, b"", ttl=self._lease)
                        await self._read_roster(store)
                except TimeoutError:
                    if not self._leads:
                        raise
                    continue  # the head hosts the store: it was itself stopped, and looks who is left
                alive = {id for key in keys if (id := number_in(key, _ALIVE)) is not None}
                alive.add(self._id)
                seen |= alive
                if alive != self.alive:
                    self.alive = alive
                    self.changed()
                self._miss(seen - alive, keys)
                await asyncio.sleep(self._beat)
        except (AiodistError, TimeoutError):
            self.lose_touch()
            self._trouble("failure")

    def _miss(self, silent: set[int], keys: set[str]) -> None:
        news = False
        for node, event in self._lost.items():
            gone = self.roster.members[node].id in silent and self.report_key(node) not in keys
            if gone and not event.is_set():
                event.set()
                news = True
        if news and self._listener is not None:
            self._listener.missed(self.lost)
