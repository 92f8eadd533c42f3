"""Finding the job, and seeing all of its hosts: by this host's files, or by its store where it has others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from aiodist.errors import AiodistError, RendezvousError, UsageError
from aiodist.observe.source import HostSource, Source, source_of
from aiodist.observe.view import JobView

AGAIN = 30.0
"""Seconds after which the store is asked again, where it has shown no other host."""

Choose = Callable[[Sequence[JobView]], JobView | None]


class Sight:
    """The job, wherever its ranks are.

    Args:
        choose: of the jobs of this host, the one that is meant; None: it is not there yet.
        environ: has the job's secret, as its own processes have it.
    """

    def __init__(self, choose: Choose, environ: Mapping[str, str]) -> None:
        self._choose = choose
        self.environ = environ
        self._host: Source = HostSource()
        self._store: Source | None = None
        self._key = ""
        self._due = 0.0

    async def look(self) -> JobView | None:
        """The job as it is; None: it is not there (any more).

        Raises:
            AiodistError: its other hosts cannot be seen; until the next try it is seen as far as this one.
        """
        if self._store is not None:
            try:
                seen = await self._store.look()
                job = next((one for one in seen if one.key == self._key), None)
                if job is not None and len(job.hosts) > 1:
                    return job
            except RendezvousError:
                pass  # the job may have ended
            await self._let_go()
        job = self._choose(await self._host.look())
        key = "" if job is None else job.key
        if key != self._key:  # read the files of this job only; or look for it among all
            self._key, self._host = key, HostSource(key or None)
        if job is None:
            return None
        lives = any(rank.alive and not rank.recording.left for rank in job.ranks)
        if lives and len(job.ranks) < job.size and time.monotonic() >= self._due:
            self._due = time.monotonic() + AGAIN
            with suppress(UsageError):  # there is no such store
                self._store = source_of(job, self.environ)
                return await self._whole(job)
        return job

    async def _whole(self, job: JobView) -> JobView:
        assert self._store is not None
        try:
            seen = await self._store.look()
        except AiodistError:
            await self._let_go()
            raise
        found = next((one for one in seen if one.key == job.key), job)
        if len(found.hosts) < 2:
            await self._let_go()
        return found

    async def _let_go(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.aclose()

    async def aclose(self) -> None:
        """Let go of what it holds."""
        await self._let_go()
