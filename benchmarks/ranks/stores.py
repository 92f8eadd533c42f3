"""Stores: rank 0 hosts the server in its process, rank 1 is the client that is measured."""

from __future__ import annotations

import asyncio
import datetime
import time
from functools import partial
from typing import Any

from benchmarks.harness.cases import Case
from benchmarks.harness.link import AbsentError
from benchmarks.ranks.base import Call, LoopPeer, Peer, more_descriptors

_VALUE = b"x" * 64


class AiodistStore(LoopPeer):
    """aiodist's StoreServer and TcpStore, with a secret, as a job has them."""

    async def host(self, port: int) -> None:
        """Rank 0: serve."""
        from aiodist.rendezvous import StoreServer

        more_descriptors()
        self.server = await StoreServer.start("127.0.0.1", port, "bench", b"secret")

    async def dial(self, port: int) -> None:
        """Rank 1: connect."""
        self.port = port
        self.store = await self._client()

    async def _client(self) -> Any:
        from aiodist.rendezvous import TcpStore

        return await TcpStore.connect("127.0.0.1", self.port, "bench", b"secret", 60)

    async def prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        store = self.store
        await store.set("key", _VALUE)
        assert await store.get("key") == _VALUE
        first = await store.add("count", 1)
        assert await store.add("count", 1) == first + 1
        calls: dict[str, Call] = {
            "store_set": partial(store.set, "key", _VALUE),
            "store_get": partial(store.get, "key"),
            "store_add": partial(store.add, "count", 1),
        }
        self.once = calls[Case(**case).what]
        return {}

    async def crowd(self, clients: int, limit: float) -> float:
        """Seconds until so many clients have connected and passed a barrier; gives up after a limit."""
        more_descriptors()
        began = time.perf_counter()
        stores = await asyncio.gather(*(self._client() for _ in range(clients)))
        await asyncio.gather(
            *(store.barrier(f"crowd {began}", clients, rank, limit) for rank, store in enumerate(stores))
        )
        taken = time.perf_counter() - began
        await asyncio.gather(*(store.aclose() for store in stores))
        return taken

    async def disconnect(self) -> None:
        if self.rank == 1:
            await self.store.aclose()


class TorchStore(Peer):
    """torch's TCPStore; its server is a thread of rank 0."""

    async def host(self, port: int) -> None:
        """Rank 0: serve."""
        more_descriptors()
        self.server = self._store(port, True)

    async def dial(self, port: int) -> None:
        """Rank 1: connect."""
        self.port = port
        self.store = self._store(port, False)

    @staticmethod
    def _store(port: int, master: bool) -> Any:
        from torch.distributed import TCPStore

        return TCPStore(
            "127.0.0.1",
            port,
            is_master=master,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=60),
        )

    async def prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        store = self.store
        store.set("key", _VALUE)
        assert store.get("key") == _VALUE
        calls: dict[str, Call] = {
            "store_set": partial(store.set, "key", _VALUE),
            "store_get": partial(store.get, "key"),
            "store_add": partial(store.add, "count", 1),
        }
        self.once = calls[Case(**case).what]
        return {}

    async def crowd(self, clients: int, limit: float) -> float:
        """The same, one after the other: each call of a TCPStore blocks its thread."""
        more_descriptors()
        began = time.perf_counter()
        stores: list[Any] = []
        try:
            while len(stores) < clients:
                stores.append(self._store(self.port, False))
                if time.perf_counter() - began > limit:
                    raise AbsentError(f"{len(stores)} of them had connected after {limit:g} s")
            for store in stores:
                if store.add(f"crowd {began}", 1) == clients:
                    store.set(f"open {began}", b"1")
            for store in stores:
                store.wait([f"open {began}"])
        except RuntimeError as error:
            raise AbsentError(str(error).splitlines()[0]) from None
        return time.perf_counter() - began
