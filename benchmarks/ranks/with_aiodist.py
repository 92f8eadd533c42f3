"""aiodist in one rank: `await pg.all_reduce(array)` and so on, on the loop that takes the orders."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.cli.bench.calls import Bound, UnavailableError, timed
from aiodist.cli.bench.cases import Case
from aiodist.cli.bench.lateness import Ticker
from aiodist.cli.bench.measures import quantile
from aiodist.cli.bench.sweep import lateness
from benchmarks.ranks.base import LOOPBACK, Peer
from benchmarks.ranks.load import load
from benchmarks.ranks.objects import OBJECTS, there_and_back
from benchmarks.ranks.service import group_service, measured
from benchmarks.ranks.shapes import shapes

_SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}
_WARM = (4, 4, 8)


class AiodistPeer(Peer):
    """See `Peer`."""

    pg: dist.ProcessGroup
    bound: Bound | None = None

    def versions(self) -> dict[str, str]:
        return {"aiodist": version("aiodist"), "uvloop": version("uvloop")}

    async def connect(self, port: int, host: str = LOOPBACK) -> None:
        self.pg = await dist.init_process_group(
            init_method=f"tcp://{host}:{port}",
            rank=self.rank,
            world_size=self.size,
            timeout=max(60, self.size),
        )

    async def disconnect(self) -> None:
        await self.pg.aclose()

    async def barrier(self) -> None:
        await self.pg.barrier()

    async def all_reduce(self, array: Any) -> None:
        await self.pg.all_reduce(array)

    async def issue(self, array: Any) -> Callable[[], Awaitable[None]]:
        return self.pg.all_reduce(array, async_op=True).wait

    async def prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        wanted = Case(**case)
        if wanted.what in OBJECTS:
            pg, other = self.pg, 1 - self.rank
            send, receive = partial(pg.send_object, dst=other), partial(pg.recv_object, other)
            self.once = await there_and_back(wanted.what, self.rank, send, receive)
            return {}
        self.bound = Bound(self.pg, wanted)
        try:
            await self.bound.prepare()
        except UnavailableError as absent:
            await self.drop()
            return {"absent": str(absent)}
        self.once = self.bound.once()
        return {}

    async def turn(self, samples: int, inner: int) -> list[float]:
        assert self.once is not None
        await self.barrier()
        return await timed(self.once, samples, inner)

    async def drop(self) -> None:
        self.once = self.bound = None

    async def requests(self, kind: str, at_once: int, count: int) -> list[float]:
        """Ask, or serve, so many requests → [seconds, processor seconds] of this rank."""
        service = group_service(self.pg, kind, at_once)
        return await measured(service, self.rank, self.barrier, at_once, count)

    async def cold(self, what: str, first: int, count: int, new: bool) -> float:
        """Seconds for one call of `count` in a row: each of a shape that never came before, or all of one."""
        wanted = shapes(first, count) if new else [_WARM] * count
        tensors = [np.zeros(shape, np.float32) for shape in wanted]
        calls: list[Callable[[], Awaitable[Any]]] = [
            partial(getattr(self.pg, what), tensor) for tensor in tensors
        ]
        if what == "all_gather":
            outs = [np.zeros((self.size, *shape), np.float32) for shape in wanted]
            calls = [partial(self.pg.all_gather, *both) for both in zip(tensors, outs, strict=True)]
        await self.barrier()
        began = time.perf_counter()
        for call in calls:
            await call()
        return (time.perf_counter() - began) / count

    async def loaded(self, groups: int, each: int, seconds: float) -> dict[str, float]:
        """The lateness of a 1 ms ticker with many small all_reduces in flight, and what one takes."""
        found, one = await load(self.pg, groups, each, seconds)
        return {name: quantile(found, share) for name, share in _SHARES.items()} | {"one": one}

    async def late(self, nbytes: int, seconds: float) -> dict[str, float]:
        """The lateness of a 1 ms ticker during all_reduces, and on the idle loop."""
        await self.barrier()
        ticker = Ticker()
        ticker.start()
        await asyncio.sleep(seconds / 4)
        idle = ticker.stop()
        await self.barrier()
        found = await lateness(self.pg, nbytes, seconds)
        return {name: quantile(found, share) for name, share in _SHARES.items()} | {
            "idle_p99": quantile(idle, 0.99),
            "ticks": float(len(found)),
        }
