"""The stores of `chaos`: they are slow, out of reach, or gone with their host."""

from __future__ import annotations

import asyncio
from typing import Any

from aiodist.base.errors import RendezvousError
from aiodist.rendezvous import HashStore, Store, Watch
from tests.support.chaos_links import Faults, Process

REFUSED_AFTER = 2.0
"""Seconds after the death of its host in which a store's clients give it up."""

UNREACHED_AFTER = 10.0
"""Seconds without an answer after which a store's clients give it up."""

STORE = -1
"""The number of a store that no process hosts, in partitions."""


class Shelf:
    """One store, wherever it is served."""

    def __init__(self, chaos: Faults, host: Process | None) -> None:
        self.chaos = chaos
        self.host = host
        self.store = HashStore()
        self.down: float | None = None
        self.away_until = 0.0

    @property
    def number(self) -> int:
        """The number of the process that hosts it, or `STORE`."""
        return STORE if self.host is None else self.host.number

    def client(self, process: Process) -> Store:
        """A client of it for one process."""
        return _ChaosStore(self, process)

    def end_later(self) -> None:
        """End it in a task."""
        self._ending = asyncio.get_running_loop().create_task(self.end())

    async def end(self) -> None:
        """End it: everybody gives it up."""
        await self.store.aclose()


class _ChaosStore(Store):
    """One process's connection to a store."""

    def __init__(self, shelf: Shelf, process: Process) -> None:
        super().__init__()
        self._shelf = shelf
        self._process = process

    async def _call(self, method: str, args: list[Any], timeout: float | None = None) -> Any:
        chaos, process, shelf = self._shelf.chaos, self._process, self._shelf
        if not chaos.step(process):
            raise RendezvousError("this process was crashed")
        await self._travel(process.number, shelf.number)
        result = await shelf.store._call(method, args, timeout)
        await self._travel(shelf.number, process.number)
        return result

    async def _travel(self, src: int, dst: int) -> None:
        shelf, loop = self._shelf, asyncio.get_running_loop()
        began = loop.time()
        delay = shelf.chaos.seconds(src, dst)
        while True:
            delay = max(delay, shelf.away_until - loop.time())
            await asyncio.sleep(min(delay, UNREACHED_AFTER))
            if shelf.down is not None:
                await asyncio.sleep(max(shelf.down + REFUSED_AFTER - loop.time(), 0.0))
                raise RendezvousError("lost the connection to the store: its host is gone")
            if loop.time() - began >= UNREACHED_AFTER:
                raise RendezvousError("lost the connection to the store: it does not answer")
            if loop.time() >= shelf.away_until:
                return
            delay = 0.0

    def watch(self, prefix: str = "") -> Watch:
        return self._shelf.store.watch(prefix)

    async def aclose(self) -> None:
        """Do nothing: nothing is held."""
