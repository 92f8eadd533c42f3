"""A peer in one rank process: the orders that it can carry out.

The methods are coroutines so that aiodist's ranks and the blocking ones look alike; those of a blocking
peer never suspend.
"""

from __future__ import annotations

import importlib
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.harness.cases import Array, Case, check, fill
from benchmarks.harness.link import AbsentError
from benchmarks.ranks.service import Service

Call = Callable[[], Any]

LOOPBACK = "127.0.0.1"


class Peer:
    """One rank. Every public coroutine is an order of the driver, with JSON arguments and result.

    Args:
        rank: its number.
        size: how many there are.

    Attributes:
        kept: what functions of suites keep from one order to the next.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.once: Call | None = None
        self.kept: dict[str, Any] = {}

    def versions(self) -> dict[str, str]:
        """The versions of what is measured, for the record."""
        return {}

    # What a peer brings.

    async def connect(self, port: int, host: str = LOOPBACK) -> None:
        """Make the group, meeting on a free port of rank 0's host."""

    async def disconnect(self) -> None:
        """End the group."""

    async def barrier(self) -> None:
        """Wait for all ranks."""

    async def all_reduce(self, array: Any) -> None:
        """One all_reduce in place, for measurements that need no case."""
        raise AbsentError("has no all_reduce")

    def zeros(self, count: int) -> Any:
        """A float32 tensor for `all_reduce`."""
        return np.zeros(count, np.float32)

    async def bind(self, case: Case) -> tuple[Call, Array, Array]:
        """Allocate; returns the operation, and flat NumPy views of its input and output.

        Raises:
            AbsentError: the peer has no such operation.
        """
        raise AbsentError(f"has no {case.what}")

    async def calls(self, count: int) -> None:
        """Do the operation so many times, in a row."""
        once = self.once
        assert once is not None
        for _ in range(count):
            once()

    # The driver's orders.

    async def prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        """Bind a case, run it once on distinct values, check them, and set all to zero."""
        wanted = Case(**case)
        try:
            self.once, tensor, out = await self.bind(wanted)
            fill(tensor, self.rank)
            out[:] = 0
            await self.barrier()
            await self.calls(1)
        except AbsentError as absent:
            await self.drop()
            return {"absent": str(absent)}
        check(wanted, self.rank, self.size, tensor, out)
        tensor[:] = 0  # sums of sums would overflow
        return {}

    async def turn(self, samples: int, inner: int) -> list[float]:
        """After a barrier: seconds per operation, for each sample of `inner` operations."""
        await self.barrier()
        taken = []
        for _ in range(samples):
            began = time.perf_counter()
            await self.calls(inner)
            taken.append((time.perf_counter() - began) / inner)
        return taken

    async def drop(self) -> None:
        """Let go of the case's memory."""
        self.once = None

    async def do(self, function: str, arguments: dict[str, Any]) -> Any:
        """Run a function of the driver's: 'module:name', called with this peer and the arguments."""
        module, _, name = function.partition(":")
        return await getattr(importlib.import_module(module), name)(self, **arguments)


class LoopPeer(Peer):
    """A peer whose operations are awaited on the loop that takes the orders."""

    async def calls(self, count: int) -> None:
        once: Any = self.once
        for _ in range(count):
            await once()

    def service(self, kind: str, at_once: int, count: int) -> Service:
        """Both ends of a service for so many requests, some of them at once."""
        raise AbsentError("has no services")


def in_a_row(calls: Sequence[Call]) -> None:
    """Make some calls, one after the other."""
    for call in calls:
        call()


def more_descriptors() -> None:
    """Allow as many descriptors as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
