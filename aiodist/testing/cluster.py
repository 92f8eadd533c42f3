"""A cluster in one process: the full group code of every rank over memory channels.

For tests of services, for property tests, and, with `run_virtual`, for simulations in virtual time.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiodist.environment.thresholds import DEFAULTS, Thresholds
from aiodist.group import ProcessGroup
from aiodist.group.default import override
from aiodist.group.world import Settings, World
from aiodist.rendezvous import HashStore
from aiodist.transport.base import Endpoint
from aiodist.transport.memory import MemoryEndpoint, MemoryNetwork

T = TypeVar("T")


async def run_cluster(
    size: int,
    main: Callable[[ProcessGroup], Awaitable[T]],
    *,
    network: MemoryNetwork | None = None,
    endpoint: Callable[[int], Endpoint] | None = None,
    limits: Thresholds = DEFAULTS,
    timeout: float = 30.0,
    return_exceptions: bool = False,
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
            an ExceptionGroup (a BaseExceptionGroup if one was cancelled).
    """
    shared = MemoryNetwork() if network is None else network
    store = HashStore()

    async def rank_main(rank: int) -> T:
        async def leave() -> None:
            pass

        settings = Settings("world", "cluster", "auto", {}, timeout, inline=True, limits=limits)
        made = MemoryEndpoint(shared, rank) if endpoint is None else endpoint(rank)
        world = World(made, size, settings, leave)
        async with await world.open(store, "memory") as group:
            override.set(group)
            return await main(group)

    tasks = [
        asyncio.create_task(rank_main(rank), name=f"rank {rank}", context=contextvars.copy_context())
        for rank in range(size)
    ]
    try:
        results = await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.aclose()
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors and not return_exceptions:
        raise BaseExceptionGroup(f"{len(errors)} of {size} ranks failed", errors)
    return results  # type: ignore[return-value]
