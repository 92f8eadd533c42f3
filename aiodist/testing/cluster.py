"""A cluster in one process: the full group code of every rank over memory channels.

For tests of services, for property tests, and, with `run_virtual`, for simulations in virtual time.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiodist.group import ProcessGroup
from aiodist.group.default import override
from aiodist.group.world import Settings, World
from aiodist.rendezvous import HashStore
from aiodist.transport.memory import MemoryEndpoint, MemoryNetwork

T = TypeVar("T")


async def run_cluster(
    size: int,
    main: Callable[[ProcessGroup], Awaitable[T]],
    *,
    network: MemoryNetwork | None = None,
    timeout: float = 30.0,
    return_exceptions: bool = False,
) -> list[T]:
    """Run `main(pg)` once a rank, all in this loop, and return the results in rank order.

    Every rank has a task and a context of its own, so the module-level functions find its own group.

    Args:
        size: number of ranks.
        main: what each rank does; its group is aborted when it raises, closed when it returns.
        network: of the channels; give one with a `delay` to simulate a slow network.
        timeout: the groups' default, in seconds (virtual ones under `run_virtual`).
        return_exceptions: give the exception in a failed rank's place; else all that failed are raised as
            an ExceptionGroup (a BaseExceptionGroup if one was cancelled).
    """
    shared = MemoryNetwork() if network is None else network
    store = HashStore()

    async def rank_main(rank: int) -> T:
        async def leave() -> None:
            pass

        endpoint = MemoryEndpoint(shared, rank)
        settings = Settings("world", "cluster", "auto", {}, timeout, inline=True)
        world = World(endpoint, size, settings, leave)
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
