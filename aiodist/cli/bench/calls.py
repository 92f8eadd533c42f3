"""aiodist's calls for each case, bound to tensors, and how they are timed."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np

from aiodist.cli.bench.cases import IN_FLIGHT, Array, Case, check, fill, five
from aiodist.group import ProcessGroup

Once = Callable[[], Awaitable[Any]]


class UnavailableError(Exception):
    """The error that this case cannot be measured here; says why."""


class Bound:
    """A case with its tensors on one group.

    Args:
        pg: the group.
        case: what to measure.
    """

    def __init__(self, pg: ProcessGroup, case: Case) -> None:
        self.pg = pg
        self.case = case
        self.tensor = self.out = np.empty(0, case.numpy_dtype)

    async def prepare(self) -> None:
        """Allocate, run once on values that differ between ranks, check the result, and set all to zero.

        Raises:
            UnavailableError: the group cannot do it.
            WrongResultError: it did it wrong.
        """
        pg, case = self.pg, self.case
        if case.what == "p2p" and pg.size < 2:
            raise UnavailableError("needs two ranks")
        length, out_length = case.lengths(pg.size, pg.rank)
        self.tensor = self._empty(length)
        self.out = self._empty(out_length)
        fill(self.tensor, pg.rank)
        self.out[:] = 0
        await pg.barrier()
        await self.once()()
        check(case, pg.rank, pg.size, self.tensor, self.out)
        self.tensor[:] = 0  # sums of sums would overflow

    def _empty(self, length: int) -> Array:
        if not self.case.shared or not length:
            return np.empty(length, self.case.numpy_dtype)
        return self.pg.empty((length,), self.case.numpy_dtype)

    def once(self) -> Once:
        """The operation: call it and await what it returns."""
        if self.case.what == "five":
            return self._five()
        return self._call(self.case.what, self.tensor, self.out)

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
            case "p2p":
                return (self._ping, self._pong, self._idle)[min(pg.rank, 2)]
            case "barrier":
                return pg.barrier
            case "inflight":
                rows = [tensor.copy() for _ in range(IN_FLIGHT)]
                return partial(self._in_flight, rows)
        raise UnavailableError(f"there is no {what}")

    def _five(self) -> Once:
        places = five(self.case, self.pg.size).items()
        calls = [self._call(what, self.tensor[given], self.out[got]) for what, (given, got) in places]

        async def in_a_row() -> None:
            for call in calls:
                await call()

        return in_a_row

    async def _ping(self) -> None:
        await self.pg.send(self.tensor, 1)
        await self.pg.recv(self.out, 1)

    async def _pong(self) -> None:
        await self.pg.recv(self.out, 0)
        await self.pg.send(self.tensor, 0)

    async def _idle(self) -> None:
        pass

    async def _in_flight(self, rows: list[Array]) -> None:
        works = [self.pg.all_reduce(row, async_op=True) for row in rows]
        for work in works:
            await work


async def timed(once: Once, samples: int, inner: int) -> list[float]:
    """Seconds per operation, once for each sample of `inner` operations in a row."""
    taken = []
    for _ in range(samples):
        began = time.perf_counter()
        for _ in range(inner):
            await once()
        taken.append((time.perf_counter() - began) / inner)
    return taken


def per_operation(case: Case, seconds: float) -> float:
    """Seconds as they are reported: half of there and back, and one of those in flight."""
    return seconds / {"p2p": 2, "inflight": IN_FLIGHT}.get(case.what, 1)
