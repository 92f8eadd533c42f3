"""Looking at a job again and again until it has gone, for commands that show or tell it on."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio import Future
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiodist.observe import JobView
    from aiodist.observe.source import Source

_STARTING = 5.0  # seconds for which the ranks of a host may still be starting


async def looks(
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
    from aiodist.observe.source import HostSource

    source: Source = HostSource()
    try:
        job: JobView | None = None
        while not left.done():
            if job is not None:
                job = next((found for found in await source.look() if found.key == job.key), None)
                if job is None:
                    return
            elif (jobs := await source.look()) or wanted is not None:
                job = pick(jobs, wanted)
            if job is not None:
                source = await _source(source, job)
            yield job, source.note
            await asyncio.wait([left], timeout=every)
    finally:
        await source.aclose()


async def _source(source: Source, job: JobView) -> Source:
    """Where the next look is taken: at all hosts, once it is clear that there are others."""
    from aiodist.observe.rates import age
    from aiodist.observe.source import HostSource, source_of

    if not isinstance(source, HostSource):
        return source
    await source.aclose()
    starting = len(job.ranks) < job.size and age(job) < _STARTING
    if starting or not any(rank.alive for rank in job.ranks):
        return HostSource(job.key)
    return source_of(job, os.environ)


@contextmanager
def leaving() -> Iterator[Future[int]]:
    """A future that has the exit code when somebody wants to leave: by Ctrl-C 0, by SIGTERM 143."""
    loop = asyncio.get_running_loop()
    left: Future[int] = loop.create_future()
    codes = {signal.SIGINT: 0, signal.SIGTERM: 128 + signal.SIGTERM}
    for signum, code in codes.items():
        loop.add_signal_handler(signum, leave, left, code)
    try:
        yield left
    finally:
        for signum in codes:
            loop.remove_signal_handler(signum)


def leave(left: Future[int], code: int) -> None:
    """Leave, with this exit code; once."""
    if not left.done():
        left.set_result(code)
