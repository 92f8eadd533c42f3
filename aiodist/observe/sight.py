"""A job looked at again and again: by the files of this host, or by its store where it has other hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from aiodist.observe.rates import age
from aiodist.observe.source import HostSource, Source, source_of
from aiodist.observe.view import JobView

AGAIN = 30.0
"""Seconds after which a job's store is asked again, where it has shown no other host."""

STARTING = 5.0
"""Seconds for which the ranks of a host may still be starting."""

Choose = Callable[[Sequence[JobView]], JobView | None]


class Sight:
    """A job, wherever its ranks are.

    Args:
        choose: of the jobs of this host, the one that is meant; None: it is not there yet.
        environ: for the job's secret, where its own processes cannot be read for it.
    """

    def __init__(self, choose: Choose, environ: Mapping[str, str]) -> None:
        self._choose = choose
        self._environ = environ
        self._host: Source = HostSource()
        self._store: Source | None = None
        self._key = self._note = ""
        self._due = 0.0

    async def read(self) -> tuple[JobView | None, str]:
        """The job as it is; None: it is not there (any more). With it a note that says why not all of it is
        seen; '' where it is."""
        if self._store is not None and (job := await self._by_store(self._store)) is not None:
            return job, ""
        job = self._choose(await self._host.read())
        key = "" if job is None else job.key
        if key != self._key:  # read the files of this job only; or look for it among all
            self._key, self._host = key, HostSource(key or None)
        if job is None or not self._has_others(job):
            return job, ""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + AGAIN
            self._store = source_of(job, self._environ)
            if (found := await self._by_store(self._store)) is not None:
                return found, ""
        return job, self._note

    def _has_others(self, job: JobView) -> bool:
        """Whether there are other hosts, as far as is seen here."""
        lives = any(rank.alive and not rank.recording.left for rank in job.ranks)
        return lives and len(job.ranks) < job.size and age(job) >= STARTING

    async def _by_store(self, store: Source) -> JobView | None:
        """All of the job; None where the store shows no more than this host does."""
        found = next((one for one in await store.read() if one.key == self._key), None)
        if found is not None and len(found.hosts) > 1 and not store.note:
            return found
        self._note = store.note
        await self._let_go()
        return None

    async def _let_go(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.aclose()

    async def aclose(self) -> None:
        """Let go of what it holds."""
        await self._let_go()
