"""Looking at a job again and again until it has gone, for commands that show or tell it on."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio import Future
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiodist.observe import JobView

LEAVING = {signal.SIGINT: 0, signal.SIGTERM: 128 + signal.SIGTERM}
"""Exit codes of who leaves by these signals; see `stop_on`."""


async def views(
    wanted: str | None, every: float, left: Future[int]
) -> AsyncGenerator[tuple[JobView | None, str], None]:
    """A job whenever it was looked at, until it has gone or somebody leaves; None while there is none. With
    it a note that says why not all of it is seen; '' where it is.

    Args:
        wanted: the job, as for `pick`; None: the newest, for which it waits.
        every: seconds from look to look.
        left: done once somebody wants to leave.

    Raises:
        UsageError: there is no such job.
    """
    from aiodist.observe.choice import pick
    from aiodist.observe.source import Sight

    key = ""

    def choose(jobs: Sequence[JobView]) -> JobView | None:
        if key:
            return next((job for job in jobs if job.key == key), None)
        return pick(jobs, wanted) if jobs or wanted is not None else None

    sight = Sight(choose, os.environ)
    try:
        while not left.done():
            job, note = await sight.read()
            if job is not None:
                key = job.key
            elif key:
                return
            yield job, note
            await asyncio.wait([left], timeout=every)
    finally:
        await sight.aclose()
