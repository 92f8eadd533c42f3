"""A draft of the next epoch, being formed: its world, its group, and how far it has come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

from aiodist.base.errors import AiodistError, PeerLost, RendezvousTimeout
from aiodist.group.epochs.job import Job
from aiodist.group.epochs.world import World
from aiodist.group.membership.record import Record
from aiodist.group.process_group import ProcessGroup
from aiodist.net.within import within
from aiodist.rendezvous import Store
from aiodist.transport import Endpoint

R = TypeVar("R")


class Candidate(Generic[R]):
    """A draft that is being formed, in a task of its own. Close it unless its epoch was adopted.

    A draft whose links are up may have been formed at others, though not here (a member died in its
    barrier), and may still be decided: so its world is kept until it is known which one is.

    Args:
        job: the job.
        record: the draft.
        limit: seconds for forming it.
        changed: called when it has come further.
        listen: makes what takes the new world's members on from there: it hears of the epoch after.

    Attributes:
        regroup: what `listen` made, once its links are up.
        store: that its members meet at.
        formed: all its members are connected.
        culprits: members by whose fault it could not be formed (uids).
        error: why it could not.
    """

    def __init__(
        self,
        job: Job,
        record: Record,
        limit: float,
        changed: Callable[[], None],
        listen: Callable[[World, ProcessGroup], R],
    ) -> None:
        self.record = record
        self.regroup: R | None = None
        self.store: Store | None = None
        self.formed = False
        self.error: BaseException | None = None
        self.culprits: Collection[bytes] = ()
        self._job = job
        self._limit = limit
        self._changed = changed
        self._listen = listen
        self._linked = asyncio.Event()
        self._world: World | None = None
        self._group: ProcessGroup | None = None  # once its links are up
        self._task = asyncio.get_running_loop().create_task(self._form())

    async def _form(self) -> None:
        try:
            await self._try()
            self.formed = True
        except AiodistError as error:
            self.error = error
            self.culprits = self._blame(error)
        except OSError as error:
            self.error = error
        finally:
            self._linked.set()
            self._changed()

    async def _try(self) -> None:
        job, record = self._job, self.record
        rank = record.rank_of(job.uid)
        assert rank is not None
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._limit
        store, endpoint = await self._prepare(rank)
        settings = replace(
            job.settings,
            epoch=record.epoch,
            place=record.name,
            uid=job.uid,
            hosts_store=record.host == job.uid,
        )
        forming = replace(settings, timeout=max(ends - loop.time(), 0.001))
        world = World(endpoint, len(record.members), forming, _stay)
        self._world = world
        self._group = group = await world.link(store, job.host)
        group.timeout = settings.timeout
        self.regroup = self._listen(world, group)
        self._linked.set()
        await group.barrier(timeout=max(ends - loop.time(), 0.001))

    async def _prepare(self, rank: int) -> tuple[Store, Endpoint]:
        """Connect to the store, and open the endpoint of the new world."""
        late = partial(RendezvousTimeout, f"the store gave no answer within {self._limit:g} s")
        async with within(self._limit, late):
            store = self.store = await self._job.store_of(self.record)
            return store, await self._job.open_endpoint(rank, self.record.name)

    def _blame(self, error: AiodistError) -> Collection[bytes]:
        ranks: Collection[int] = ()
        if isinstance(error, RendezvousTimeout):
            ranks = error.missing_ranks
        elif isinstance(error, PeerLost):
            lost = self._lost
            ranks = lost[:1] or error.ranks  # the first of them: others may only have drawn the consequence
        members = self.record.members
        return [
            members[rank] for rank in ranks if 0 <= rank < len(members) and members[rank] != self._job.uid
        ]

    @property
    def _lost(self) -> list[int]:
        """Ranks that the draft's own links told of, in the order of the news."""
        return [] if self._world is None else list(self._world.control.core.lost)

    async def linked(self) -> R | None:
        """Wait until it is known whether the links are up → `regroup`, None where they are not."""
        await self._linked.wait()
        return self.regroup

    async def barrier_ended(self) -> None:
        """Wait for the barrier, however it ends."""
        await asyncio.wait([self._task])

    async def close(self) -> None:
        """Leave no trace."""
        self._task.cancel()
        try:
            await asyncio.gather(self._task, return_exceptions=True)
        finally:
            if self._world is not None and self._group is not None:
                await self._world.abandon(self._group, "another draft became the epoch")
                await self._group.aclose()


async def _stay() -> None:
    """Leave the job as it is: the epoch was never adopted."""
