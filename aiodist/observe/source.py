"""Where an observer has its views from: this host's files, or all hosts of a job by its store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from aiodist.base.environment import secret, split_address, tls
from aiodist.base.errors import AiodistError, RendezvousError, UsageError
from aiodist.base.sanitize import one_line
from aiodist.observe.ask import ask
from aiodist.observe.exchange import gather
from aiodist.observe.host import environ_of, read_jobs, read_ranks
from aiodist.observe.view import JobView, RankView, jobs
from aiodist.rendezvous import PrefixStore, TcpStore

FEW = 64
"""Operations of each rank that are asked for where only its present state is wanted."""

PATIENCE = 5.0  # seconds for connecting to the store


class Source(Protocol):
    """Where views of jobs come from.

    Attributes:
        note: why not all of a job is seen; '' where it is.
    """

    note: str

    async def read(self) -> list[JobView]:
        """What can be seen now, the job that began last first."""

    async def aclose(self) -> None:
        """Let go of what it holds. May be called twice."""


class HostSource:
    """The jobs of this host and user. Nothing is asked of their processes.

    Args:
        key: of the only job that is wanted; None: all.
    """

    def __init__(self, key: str | None = None) -> None:
        self.note = ""
        self._key = key

    async def read(self) -> list[JobView]:
        """What can be seen now; read in a thread, since it may take a while where there are many ranks."""
        return await asyncio.to_thread(read_jobs, self._key)

    async def aclose(self) -> None:
        """Nothing is held."""


class StoreSource:
    """One job on all its hosts, by its store. Where that cannot be asked, its ranks on this host.

    Args:
        job: as it is seen on this host; it tells where its store is.
        environ: for the job's secret, where none of its processes here can be read for it.
        most: operations of each rank that are wanted.
        stacks: whether the ranks are to say what they do.
    """

    def __init__(
        self, job: JobView, environ: Mapping[str, str], *, most: int = FEW, stacks: bool = False
    ) -> None:
        about = job.ranks[0].recording.about
        self.note = ""
        self._key = job.key
        self._size = job.size
        self._address = str(about.get("address", ""))
        self._job = str(about.get("job", ""))
        self._name = str(about.get("name", ""))
        self._environ = environ
        self._most = most
        self._stacks = stacks
        self._store: TcpStore | None = None

    async def read(self) -> list[JobView]:
        """What can be seen now. Each look is a question to the job, which one rank of each host answers."""
        own = await asyncio.to_thread(read_ranks, self._key)
        if self._stacks:
            own = await asyncio.to_thread(ask, own)
        if not self.note:  # it is not tried again: who asks is shown something at once
            try:
                store = PrefixStore(f"aiodist/{self._name}", await self._connected(own))
                own = await gather(store, self._size, own, most=self._most, stacks=self._stacks)
            except (AiodistError, OSError) as error:
                self.note = f"only the ranks of this host are shown: {one_line(str(error))}"
        return jobs(own)

    async def _connected(self, own: list[RankView]) -> TcpStore:
        if self._store is None:
            if ":" not in self._address:
                raise UsageError("the job meets at no store that can be asked")
            host, port = split_address(self._address, "the store's address")
            environ = next(filter(None, map(environ_of, own)), self._environ)
            self._store = await TcpStore.connect(
                *(host, port, self._job, secret(environ), PATIENCE), tls=tls(environ)
            )
        return self._store

    async def aclose(self) -> None:
        """Say goodbye to the store."""
        store, self._store = self._store, None
        if store is not None:
            try:
                await store.aclose()
            except RendezvousError:
                pass  # it has gone before


async def whole(
    job: JobView, environ: Mapping[str, str], *, most: int = FEW, stacks: bool = False
) -> tuple[JobView, str]:
    """All of a job: as it was seen, or, where it has other hosts, what these show too → it, and a note."""
    if len(job.ranks) >= job.size or not any(rank.alive for rank in job.ranks):
        return job, ""
    source = source_of(job, environ, most=most, stacks=stacks)
    try:
        found = next((found for found in await source.read() if found.key == job.key), job)
        return found, source.note
    finally:
        await source.aclose()


def source_of(job: JobView, environ: Mapping[str, str], *, most: int = FEW, stacks: bool = False) -> Source:
    """The source that shows all of a job: its host's files, or its store where it has other hosts."""
    if len(job.ranks) >= job.size:
        return HostSource(job.key)
    return StoreSource(job, environ, most=most, stacks=stacks)
