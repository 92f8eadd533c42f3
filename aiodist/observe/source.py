"""Where an observer has its views from: this host's files, or all hosts of a job by its store."""

from __future__ import annotations

import asyncio
from typing import Protocol

from aiodist.observe.host import look_at_jobs
from aiodist.observe.view import JobView


class Source(Protocol):
    """Where views of jobs come from."""

    async def look(self) -> list[JobView]:
        """What can be seen now, the job that began last first.

        Raises:
            RendezvousError: the job's store cannot be reached (any more).
        """

    async def aclose(self) -> None:
        """Let go of what it holds. May be called twice."""


class HostSource:
    """The jobs of this host and user. Nothing is asked of their processes.

    Args:
        key: of the only job that is wanted; None: all.
    """

    def __init__(self, key: str | None = None) -> None:
        self._key = key

    async def look(self) -> list[JobView]:
        """What can be seen now; read in a thread, since it may take a while where there are many ranks."""
        return await asyncio.to_thread(look_at_jobs, self._key)

    async def aclose(self) -> None:
        """Nothing is held."""
