"""A membership, which outlives epochs: this process, the job's rendezvous, how to open an endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from aiodist.group.epochs.world import Settings
from aiodist.group.membership.newcomers import PassedOver
from aiodist.group.membership.presence import Presence
from aiodist.group.membership.record import Record
from aiodist.group.services.switchboard import Switchboard
from aiodist.net.tasks import Tasks
from aiodist.rendezvous import Store
from aiodist.transport import Endpoint

T = TypeVar("T")


@dataclass
class Job:
    """One process's membership of a job, over all its epochs.

    Args:
        uid: names this process; random.
        words: a description of this process, for people: 'pid 4711 on host a'.
        settings: of the job; each epoch adds its number and place.
        store: where the job meets, with the prefix of its name.
        open_endpoint: makes the endpoint of a rank in a place.
        leave: awaited when this process has left its last epoch.
        host_store: starts a store in this process → its address; for a job whose store was lost with its
            host. None: no member hosts the job's store, and it decides which members go on.
        reach_store: connects to a store at an address that a member (uid) hosts, with the prefix of the job's
            name.
        store_address: of a store that a member hosts, as the record has it; '' for any other.
        store_host: uid of that member. Another one may serve at the same address later.
        admitted: awaited when this process has come to its first epoch, before another member counts on it.
        host: this host's name; None: what the system says.
        background: old epochs that are being closed, and calls for the next one.
        passed_over: newcomers that could not come in.
        run: the name of the run of the job; '' where its members decide who goes on.
        presence: shows at the store that this process is there; None: it need not.
        hasty: a member was lost in the last epoch: wait for nobody for long.
        finished: the epoch that this process has closed with all well, and how many members it had.
    """

    uid: bytes
    words: str
    settings: Settings
    store: Store
    open_endpoint: Callable[[int, str], Awaitable[Endpoint]]
    leave: Callable[[], Awaitable[None]]
    host_store: Callable[[], Awaitable[str]] | None = None
    reach_store: Callable[[str, bytes], Awaitable[Store]] | None = None
    store_address: str = ""
    store_host: bytes = b""
    admitted: Callable[[], Awaitable[None]] | None = None
    host: str | None = None
    background: Tasks = field(default_factory=Tasks)
    finished: tuple[int, int] | None = None
    passed_over: PassedOver = field(default_factory=PassedOver)
    run: str = ""
    presence: Presence | None = None
    hasty: bool = False

    def __post_init__(self) -> None:
        if self.settings.services is None:
            self.settings = replace(self.settings, services=Switchboard(self.uid))

    async def show(self) -> None:
        """Have the store show that this process is there, where that matters."""
        if self.presence is not None:
            await self.presence.show()

    async def store_of(self, record: Record) -> Store:
        """The store that a record's members meet at."""
        known = (record.store, record.host) == (self.store_address, self.store_host)
        if not record.store or known or self.reach_store is None:
            return self.store
        return await self.reach_store(record.store, record.host)

    def move_to(self, record: Record, store: Store | None) -> None:
        """Meet where a record says from now on, at that store."""
        self.store = store or self.store
        if record.store:
            self.store_address, self.store_host = record.store, record.host

    def in_background(self, step: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have something go on beside what users await: the end of the job waits for it."""
        return self.background.start(step)

    async def end(self) -> None:
        """End the job after its last epoch: return when nothing of the others is left, either.

        Each cancellation is handed on to what still goes on, which may then let go at once; it does not
        outlive this.
        """
        try:
            if self.settings.services is not None:
                await self.settings.services.aclose()
            await self._finish_background()
        finally:
            await self.leave()

    async def _finish_background(self) -> None:
        while self.background:
            try:
                await asyncio.wait(set(self.background))
            except asyncio.CancelledError:
                for task in self.background:  # soon: each has begun by then, so it can tidy up
                    asyncio.get_running_loop().call_soon(task.cancel)
                await self._finish_background()
                raise
