"""aiodist in one rank: `await pg.all_reduce(array)` and so on, on the loop that takes the orders.

Only its public names are used, so that these ranks measure older states of aiodist, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

import aiodist as dist
from benchmarks.harness.cases import IN_FLIGHT, Array, Case, five
from benchmarks.harness.link import AbsentError
from benchmarks.ranks.base import LOOPBACK, LoopPeer
from benchmarks.ranks.service import Service, group_service

Once = Callable[[], Awaitable[Any]]
_LOADED = dist.ProcessGroup, dist.init_process_group  # now, not in a call that is timed


class AiodistPeer(LoopPeer):
    """See `Peer`."""

    pg: dist.ProcessGroup

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

    async def bind(self, case: Case) -> tuple[Once, Array, Array]:
        tensor, out = (self._empty(case, length) for length in case.lengths(self.size, self.rank))
        if case.what == "five":
            places = five(case, self.size).items()
            calls = [self._call(what, tensor[given], out[got]) for what, (given, got) in places]
            return partial(_in_a_row, calls), tensor, out
        return self._call(case.what, tensor, out), tensor, out

    def _empty(self, case: Case, length: int) -> Array:
        if not case.shared or not length:
            return np.empty(length, case.numpy_dtype)
        return self.pg.empty((length,), case.numpy_dtype)

    def _call(self, what: str, tensor: Array, out: Array) -> Once:
        pg = self.pg
        match what:
            case "all_reduce":
                return partial(pg.all_reduce, tensor)
            case "all_gather":
                return partial(pg.all_gather, tensor, out.reshape(pg.size, -1))
            case "reduce_scatter":
                return partial(pg.reduce_scatter, tensor, out)
            case "broadcast":
                return partial(pg.broadcast, tensor)
            case "all_to_all":
                return partial(pg.all_to_all, tensor, out)
            case "reduce":
                return partial(pg.reduce, tensor)
            case "gather":
                return partial(pg.gather, tensor, 0, None if pg.rank else out.reshape(pg.size, -1))
            case "scatter":
                return partial(pg.scatter, out, None if pg.rank else tensor.reshape(pg.size, -1))
            case "p2p" if pg.size > 1:
                return partial((_ping, _pong, _idle)[min(pg.rank, 2)], pg, tensor, out)
            case "barrier":
                return pg.barrier
            case "inflight":
                return partial(_in_flight, pg, [tensor.copy() for _ in range(IN_FLIGHT)])
        raise AbsentError(f"has no {what}")

    def service(self, kind: str, at_once: int, count: int) -> Service:
        return group_service(self.pg, kind, at_once)


async def _in_a_row(calls: list[Once]) -> None:
    for call in calls:
        await call()


async def _ping(pg: dist.ProcessGroup, tensor: Array, out: Array) -> None:
    await pg.send(tensor, 1)
    await pg.recv(out, 1)


async def _pong(pg: dist.ProcessGroup, tensor: Array, out: Array) -> None:
    await pg.recv(out, 0)
    await pg.send(tensor, 0)


async def _idle(*_: Any) -> None:
    pass


async def _in_flight(pg: dist.ProcessGroup, rows: list[Array]) -> None:
    works = [pg.all_reduce(row, async_op=True) for row in rows]
    for work in works:
        await work
