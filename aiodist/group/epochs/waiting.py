"""The number of newcomers at the store, known without asking it each time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from aiodist.errors import RendezvousError
from aiodist.membership import newcomers
from aiodist.rendezvous import Store


class Waiting:
    """A watch on the queue of newcomers, from its first question on.

    Args:
        store: where the job meets.
        members: uids that are no newcomers any more.
    """

    def __init__(self, store: Store, members: Collection[bytes]) -> None:
        self._store = store
        self._members = members
        self._task: asyncio.Task[None] | None = None
        self._uids: set[bytes] = set()

    async def count(self) -> int:
        """The number of waiting newcomers. The first time it asks the store; 0 where that is out of reach."""
        if self._task is None or self._task.done():
            try:
                self._uids = set(await newcomers.pending(self._store))
            except RendezvousError:
                return 0
            self._task = asyncio.get_running_loop().create_task(self._watch())
        return len(self._uids.difference(self._members))

    async def _watch(self) -> None:
        try:
            async with self._store.watch(newcomers.QUEUE) as watch:
                async for key, value in watch:
                    uid = newcomers.uid_in(key)
                    if uid is not None:
                        (self._uids.discard if value is None else self._uids.add)(uid)
        except RendezvousError:
            pass  # the next question asks the store again

    def close(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()
