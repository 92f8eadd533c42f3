"""A worker that comes back to a job that has ended: it does not wait for ranks that have finished.

A worker that a launcher starts again may be slow, and come to a store at which the last epoch is over. A new
run of all ranks would begin there. But those that have ended well do not come: their launcher says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from aiodist.base.environment import store_url
from aiodist.base.errors import RendezvousError, name_ranks
from aiodist.rendezvous import Store, claim_rank

FINISHED = "aiodist/finished/"
"""The start of a key that ends with a rank, and says that this rank has ended well."""

_DEAD = 3.0  # seconds in which a store finds that the process before us, in this rank, is dead
_AGAIN = 0.1

T = TypeVar("T")
E = TypeVar("E")


def told_who_finishes(environ: Mapping[str, str], world_size: int) -> bool:
    """Whether a launcher's store may say it of the ranks of this world."""
    return by_launcher(environ) and environ.get("WORLD_SIZE") == str(world_size)


def by_launcher(environ: Mapping[str, str]) -> bool:
    """Whether a launcher of ours has started this process, and hosts the store at which it meets."""
    return bool(environ.get("AIODIST_STORE")) and store_url(environ) is None


@dataclass
class Late:
    """The gathering of the ranks of a job that had begun before, as long as all of them may come.

    Args:
        store: where they gather.
        reports: where the launcher says which ranks have finished.
        world_size: how many they are.
    """

    store: Store
    reports: Store
    world_size: int

    async def claim(self, rank: int, description: bytes) -> None:
        """Claim a rank as `claim_rank` does, also soon after the death of its last process."""
        await self._unless_finished(self._claim(rank, description))

    async def gather(
        self, name: str, world_size: int, rank: int, value: bytes, timeout: float | None = None
    ) -> list[bytes]:
        """Gather as `Store.gather` does; raise `RendezvousError`, too, where not all can come any more."""
        return await self._unless_finished(self.store.gather(name, world_size, rank, value, timeout))

    async def _claim(self, rank: int, description: bytes) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _DEAD
        while True:
            try:
                return await claim_rank(self.store, rank, description)
            except RendezvousError:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(_AGAIN)

    async def _unless_finished(self, work: Coroutine[Any, Any, T]) -> T:
        result, ranks = await unless(work, self._finished())
        if ranks is not None:
            raise RendezvousError(
                f"the job has ended: {name_ranks(ranks)} finished without this process",
                hint="There is nothing left to do",
            )
        return cast("T", result)

    async def _finished(self) -> list[int]:
        """The ranks that have finished, as soon as there are any."""
        async with self.reports.watch(FINISHED) as watch:
            async for _ in watch:
                keys = [key.removeprefix(FINISHED) for key in await self.reports.list_keys(FINISHED)]
                # Workers of nodes that came later are none of those who begin.
                ranks = [int(key) for key in keys if key.isdecimal() and int(key) < self.world_size]
                if ranks:
                    return sorted(ranks)
        raise RendezvousError("the store has ended the watch")


async def unless(
    work: Coroutine[Any, Any, T],
    end: Coroutine[Any, Any, E],
    undo: Callable[[T, BaseException], Awaitable[object]] | None = None,
) -> tuple[T, None] | tuple[None, E]:
    """Do some work unless something else ends first, which then cancels it → what the one that ended returns.

    Where `end` fails, only the work counts: of a lost store both tell.

    Args:
        work: what to do.
        end: what ends it.
        undo: takes the work back where this is cancelled in the very moment in which it is done, so that
            nobody gets its result.
    """
    loop = asyncio.get_running_loop()
    working, ending = loop.create_task(work), loop.create_task(end)
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and ending.exception() is not None:
            await asyncio.wait({working})
    except BaseException as error:
        await _stop(working, ending)
        if undo is not None and _is_well(working):
            await undo(working.result(), error)
        raise
    over = not working.done()
    await _stop(working, ending)
    if over and not _is_well(working):
        return None, ending.result()
    return working.result(), None


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _is_well(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and task.exception() is None
