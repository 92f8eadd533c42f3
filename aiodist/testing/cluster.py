"""A cluster in one process: the full group code of every rank over memory channels.

For tests of services, for property tests, and, with `run_virtual`, for simulations in virtual time.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from aiodist.backends.choice import parse
from aiodist.base.environment.thresholds import DEFAULTS, Thresholds
from aiodist.group import ProcessGroup
from aiodist.group.default import override
from aiodist.group.epochs.beginning import first_epoch
from aiodist.group.epochs.job import Job
from aiodist.group.epochs.newcomer import join_running
from aiodist.group.epochs.world import Settings, World
from aiodist.group.membership.record import UID_BYTES
from aiodist.rendezvous import HashStore
from aiodist.testing.clock import VirtualLoop
from aiodist.testing.report import follows, line_of, place_of, same_lines
from aiodist.transport import Endpoint
from aiodist.transport.memory import MemoryEndpoint, MemoryNetwork

T = TypeVar("T")
_Main = Callable[[ProcessGroup], Awaitable[Any]]
Newcomer = Callable[[bytes, Callable[[Settings], Job], _Main, float], Coroutine[Any, Any, Any]]
"""Has a process join the running job: its uid, its job, what it does there, seconds that it may take."""


class Processes(Protocol):
    """The processes of a cluster: what their jobs stand on, and what happens to them."""

    def uid(self, rank: int) -> bytes:
        """The uid of a rank's process."""

    def hosts_store(self, rank: int) -> bool:
        """Whether a rank's process hosts the store."""

    def job_of(self, rank: int, settings: Settings) -> Job:
        """The job, as a rank's process has it."""

    async def endpoint(self, rank: int, job: Job) -> Endpoint:
        """A rank's endpoint in the first epoch."""

    def started(self, tasks: list[asyncio.Task[Any]], newcomer: Newcomer) -> None:
        """Take the ranks' tasks, which do not run yet, and what makes newcomers."""

    async def ended(self, results: list[Any]) -> Collection[int]:
        """Wait for what else there is → ranks whose results are no failures; it may put results in."""

    async def aclose(self) -> None:
        """End what still runs, and let go of the stores."""


async def run_cluster(
    size: int,
    main: Callable[[ProcessGroup], Awaitable[T]],
    *,
    network: MemoryNetwork | None = None,
    endpoint: Callable[[int], Endpoint] | None = None,
    limits: Thresholds = DEFAULTS,
    timeout: float = 30.0,
    return_exceptions: bool = False,
    processes: Processes | None = None,
    backend: str = "host",
) -> list[T]:
    """Run `main(pg)` once a rank, all in this loop, and return the results in rank order.

    Every rank has a task and a context of its own, so the module-level functions find its own group.

    Args:
        size: number of ranks.
        main: what each rank does; its group is aborted when it raises, closed when it returns.
        network: of the channels; give one with a `delay` to simulate a slow network, with `hosts` to simulate
            several hosts.
        endpoint: makes a rank's endpoint, where it shall not be one of `network`.
        limits: the host engine's thresholds.
        timeout: the groups' default, in seconds (virtual ones under `run_virtual`).
        return_exceptions: give the exception in a failed rank's place; else all that failed are raised as
            an ExceptionGroup (a BaseExceptionGroup if one was cancelled): first those that tell a cause, then
            by rank.
        processes: makes the processes, in place of `network` and `endpoint`; they may die, or get newcomers.
        backend: as for `init_process_group`.
    """
    choice = parse(backend, gpu=False).check()
    cluster = _Plain(size, network, endpoint) if processes is None else processes

    def settings(uid: bytes, hosts_store: bool = False) -> Settings:
        return Settings(
            *("world", "cluster", "auto", {}, timeout),
            inline=True,
            limits=limits,
            uid=uid,
            hosts_store=hosts_store,
            choice=choice,
        )

    async def inside(entering: Awaitable[ProcessGroup], main: Callable[[ProcessGroup], Awaitable[T]]) -> T:
        async with await entering as group:
            override.set(group)
            return await main(group)

    async def rank_main(rank: int) -> T:
        job = cluster.job_of(rank, settings(cluster.uid(rank), cluster.hosts_store(rank)))
        world = World(await cluster.endpoint(rank, job), size, job.settings, job.end)
        return await inside(first_epoch(job, world, job.store), main)

    def newcomer(
        uid: bytes,
        job_of: Callable[[Settings], Job],
        main: _Main,
        limit: float,
    ) -> Coroutine[Any, Any, Any]:
        return inside(join_running(job_of(settings(uid)), limit), main)

    tasks = [
        asyncio.create_task(rank_main(rank), name=f"rank {rank}", context=contextvars.copy_context())
        for rank in range(size)
    ]
    cluster.started(tasks, newcomer)
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        loop.more_lines = functools.partial(_ended, tasks)
    try:
        results: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        spared = await cluster.ended(results)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.aclose()
    errors = {
        rank: error
        for rank, error in enumerate(results)
        if isinstance(error, BaseException) and rank not in spared
    }
    if errors and not return_exceptions:
        raise _joined(errors, size)
    return results


def _joined(errors: dict[int, BaseException], size: int) -> BaseExceptionGroup[BaseException]:
    """All errors as one, those first that tell a cause; each has a note of its rank."""
    for rank, error in errors.items():
        error.add_note(f"on rank {rank} of {size}")
    first, *_ = ranks = sorted(errors, key=lambda rank: (follows(errors[rank]), rank))
    return BaseExceptionGroup(
        f"{len(errors)} of {size} ranks failed: rank {first}: {line_of(errors[first])}",
        [errors[rank] for rank in ranks],
    )


def _ended(tasks: Sequence[asyncio.Task[Any]]) -> list[str]:
    """The ranks that have failed, as lines."""
    errors = {
        rank: error
        for rank, task in enumerate(tasks)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None
    }
    return same_lines(
        [(rank, f"had failed: {line_of(error)} ({place_of(error)})") for rank, error in errors.items()]
    )


class _Plain:
    """Processes to which nothing happens."""

    def __init__(
        self, size: int, network: MemoryNetwork | None, endpoint: Callable[[int], Endpoint] | None
    ) -> None:
        self._shared = MemoryNetwork() if network is None else network
        self._endpoint = endpoint
        self._store = HashStore()
        self._places: dict[str, MemoryNetwork] = {}  # each draft of an epoch has a network of its own
        self._uids = [os.urandom(UID_BYTES) for _ in range(size)]

    def uid(self, rank: int) -> bytes:
        """The uid of a rank's process."""
        return self._uids[rank]

    def hosts_store(self, rank: int) -> bool:
        """Whether a rank's process hosts the store."""
        return False

    def job_of(self, rank: int, settings: Settings) -> Job:
        """A rank's."""

        async def open_endpoint(rank: int, place: str) -> Endpoint:
            if place not in self._places:
                self._places[place] = MemoryNetwork(self._shared.delay)
            return MemoryEndpoint(self._places[place], rank)

        words = f"rank {rank}"
        return Job(settings.uid, words, settings, self._store, open_endpoint, _leave, host="memory")

    async def endpoint(self, rank: int, job: Job) -> Endpoint:
        """The endpoint of the first epoch."""
        return MemoryEndpoint(self._shared, rank) if self._endpoint is None else self._endpoint(rank)

    def started(self, tasks: list[asyncio.Task[Any]], newcomer: Newcomer) -> None:
        """Nothing happens to them."""

    async def ended(self, results: list[Any]) -> Collection[int]:
        """Nothing else runs."""
        return ()

    async def aclose(self) -> None:
        """Let go of the store."""
        await self._store.aclose()


async def _leave() -> None:
    """Do nothing: a process of a cluster holds nothing when it has left its last epoch."""
