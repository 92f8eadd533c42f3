"""Dask: ranks on the workers of a cluster, one on each.

    from aiodist.integrations.dask import run

    async def main(pg, scale):
        tensor = np.full(4, scale * pg.rank)
        return await pg.all_reduce(tensor)

    sums = run(client, main, 2.0)       # a list, by rank

The first worker hosts the store; a random secret is made for each run, and goes to the workers as every task
does. If a rank fails, the others are told at once, by the group, and the first error that is no one else's
fault is raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from distributed import Client, Future, as_completed, fire_and_forget, wait

from aiodist.base.errors import GroupBroken, UsageError
from aiodist.group.runtime.init import ask, check_can_begin, form
from aiodist.group.runtime.running import run as run_loop
from aiodist.integrations.hosted import Host, HostedPlace

_PARTING = 5.0  # seconds for the other ranks, once one has failed
_hosts: dict[str, Host] = {}  # of this worker, by job


def run(
    client: Client,
    main: Callable[..., Awaitable[Any]],
    *arguments: Any,
    workers: Sequence[str] | None = None,
    timeout: float = 300.0,
) -> list[Any]:
    """Run `await main(pg, *arguments)` on each worker, as one job.

    Args:
        client: of the cluster.
        main: a coroutine function that the workers can import, or Dask can serialise.
        arguments: for it.
        workers: addresses of those to run on, rank 0 first; None: all.
        timeout: seconds for meeting, and of the group's operations.

    Returns:
        → what each rank returned, by rank.

    Raises:
        UsageError: there is no worker.
        Exception: that of the first rank which failed by itself.
    """
    chosen = sorted(client.scheduler_info()["workers"]) if workers is None else list(workers)
    if not chosen:
        raise UsageError("the cluster has no worker", hint="client.wait_for_workers(n) waits for some")
    place = client.submit(_host, workers=chosen[:1], allow_other_workers=False, pure=False).result()
    futures = [
        client.submit(
            _rank, place, rank, len(chosen), main, arguments, timeout,
            workers=[address], allow_other_workers=False, pure=False, retries=0,
        )
        for rank, address in enumerate(chosen)
    ]  # fmt: skip
    try:
        return _results(client, futures)
    finally:
        closing = client.submit(_close, place.job, workers=chosen[:1], allow_other_workers=False, pure=False)
        fire_and_forget(closing)  # it is done also where nobody waits for it so long
        with contextlib.suppress(TimeoutError):  # it is dead, and its store with it
            closing.result(_PARTING)


def _results(client: Client, futures: list[Future]) -> list[Any]:
    """Wait for the ranks → what they returned; raises the error of the first that failed by itself."""
    for future in as_completed(futures):
        if future.exception() is not None:
            break
    else:
        return [future.result() for future in futures]
    with contextlib.suppress(TimeoutError):  # a rank whose worker has died says nothing more
        wait(futures, timeout=_PARTING)
    errors = [error for future in futures if future.done() and (error := future.exception()) is not None]
    client.cancel(futures)
    raise next((error for error in errors if not isinstance(error, GroupBroken)), errors[0])


def _host() -> HostedPlace:
    host = Host.start()
    _hosts[host.place.job] = host
    return host.place


def _close(job: str) -> None:
    if (host := _hosts.pop(job, None)) is not None:
        host.close()


def _rank(
    place: HostedPlace,
    rank: int,
    size: int,
    main: Callable[..., Awaitable[Any]],
    arguments: Sequence[Any],
    timeout: float,
) -> Any:
    """One rank, in a thread of a worker: several may share its environment, so nothing is set there."""

    async def member() -> Any:
        choice = check_can_begin(None)
        asked = ask("env://", timeout, -1, -1, None, {**place.environ(rank, size), "AIODIST_RANK": ""})
        async with await form(asked, choice) as pg:
            return await main(pg, *arguments)

    return run_loop(member())


__all__ = ["run"]
