"""Where an observer has its views from: this host's files, or all hosts of a job by its store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from aiodist.base.environment import secret, split_address, tls
from aiodist.base.errors import AiodistError, RendezvousError, UsageError
from aiodist.base.sanitize import one_line
from aiodist.observe.ask import ask
from aiodist.observe.exchange import gather
from aiodist.observe.host import environ_of, read_jobs, read_ranks
from aiodist.observe.rates import age
from aiodist.observe.view import JobView, RankView, jobs
from aiodist.rendezvous import PrefixStore, TcpStore

FEW = 64
"""Operations of each rank that are asked for where only its present state is wanted."""

PATIENCE = 5.0  # seconds for connecting to the store


AGAIN = 30.0
"""Seconds after which a job's store is asked again, where it has shown no other host."""

STARTING = 5.0
"""Seconds for which the ranks of a host may still be starting."""

Choose = Callable[[Sequence[JobView]], JobView | None]


class JobSource:
    """One job: its ranks on this host, and, by its store, those on other hosts, where it has some.

    Args:
        job: as it is seen on this host; it tells where its store is.
        environ: for the job's secret, where none of its processes here can be read for it.
        most: operations of each rank that are wanted.
        stacks: whether the ranks are to say what they do.

    Attributes:
        note: why not all of the job is seen; '' where it is.
    """

    def __init__(
        self, job: JobView, environ: Mapping[str, str], *, most: int = FEW, stacks: bool = False
    ) -> None:
        about = job.ranks[0].recording.about
        self.note = ""
        self._key = job.key
        self._size = job.size
        self._has_others = len(job.ranks) < job.size and any(rank.alive for rank in job.ranks)
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
        if self._has_others and not self.note:  # it is not tried again: who asks is shown something at once
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
        """Say goodbye to the store. May be called twice."""
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
    source = JobSource(job, environ, most=most, stacks=stacks)
    try:
        found = next((found for found in await source.read() if found.key == job.key), job)
        return found, source.note
    finally:
        await source.aclose()


class Sight:
    """A job looked at again and again, wherever its ranks are.

    Args:
        choose: of the jobs of this host, the one that is meant; None: it is not there yet.
        environ: for the job's secret, where its own processes cannot be read for it.
    """

    def __init__(self, choose: Choose, environ: Mapping[str, str]) -> None:
        self._choose = choose
        self._environ = environ
        self._store: JobSource | None = None
        self._key = self._note = ""
        self._due = 0.0

    async def read(self) -> tuple[JobView | None, str]:
        """The job as it is; None: it is not there (any more). With it a note that says why not all of it is
        seen; '' where it is."""
        if self._store is not None and (job := await self._by_store(self._store)) is not None:
            return job, ""
        # The files of this job only, once it is known; else it is looked for among all.
        job = self._choose(await asyncio.to_thread(read_jobs, self._key or None))
        self._key = "" if job is None else job.key
        if job is None or not self._has_others(job):
            return job, ""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + AGAIN
            self._store = JobSource(job, self._environ)
            if (found := await self._by_store(self._store)) is not None:
                return found, ""
        return job, self._note

    def _has_others(self, job: JobView) -> bool:
        """Whether there are other hosts, as far as is seen here."""
        lives = any(rank.alive and not rank.recording.left for rank in job.ranks)
        return lives and len(job.ranks) < job.size and age(job) >= STARTING

    async def _by_store(self, store: JobSource) -> JobView | None:
        """All of the job; None where the store shows no more than this host does."""
        found = next((one for one in await store.read() if one.key == self._key), None)
        if found is not None and len(found.hosts) > 1 and not store.note:
            return found
        self._note = store.note
        await self.aclose()
        return None

    async def aclose(self) -> None:
        """Let go of the connection, if there is one."""
        store, self._store = self._store, None
        if store is not None:
            await store.aclose()
