"""A peer in one rank process: the orders that it can carry out.

The methods are coroutines so that aiodist's ranks and the blocking ones look alike; those of a blocking
peer never suspend.
"""

from __future__ import annotations

import os
import resource
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from aiodist.cli.bench.cases import IN_FLIGHT, Array, Case, WrongResultError, check, fill

Call = Callable[[], Any]

LOOPBACK = "127.0.0.1"
_SAMPLED = 2e-3  # seconds between looks at the memory of few ranks


class AbsentError(Exception):
    """The error that the peer does not offer this operation; says why."""


class Peer:
    """One rank. Every public coroutine is an order of the driver, with JSON arguments and result.

    Args:
        rank: its number.
        size: how many there are.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.once: Call | None = None

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

    async def issue(self, array: Any) -> Callable[[], Awaitable[None]]:
        """Start an all_reduce; the result waits for it."""
        raise AbsentError("has no all_reduce that runs beside the caller")

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

    async def init(self, port: int, at: float) -> float:
        """Make the group and all_reduce one number, at a given monotonic time → when the result was there."""
        tensor = self.zeros(1)
        tensor += 1
        time.sleep(max(0.0, at - time.monotonic()))  # noqa: ASYNC251
        await self.connect(port)
        await self.all_reduce(tensor)
        now = time.monotonic()
        if tensor[0] != self.size:
            raise WrongResultError(f"the first all_reduce of {self.size} ones gave {tensor[0]}")
        return now

    async def descriptors(self) -> int:
        """How many descriptors this process has."""
        return len(os.listdir("/proc/self/fd"))

    async def few_descriptors(self, most: int) -> None:
        """Allow this process only so many descriptors."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

    async def memory(self, port: int, nbytes: int) -> int:
        """Bytes at the peak of some all_reduces, above what there was before `connect`, and the tensor."""
        before = resident()
        await self.connect(port)
        tensor = self.zeros(nbytes // 4)
        with Peak(_SAMPLED * max(1, self.size / 4)) as peak:
            for _ in range(5):
                await self.all_reduce(tensor)
        return max(peak.most, resident()) - before - nbytes

    async def overlap(self, nbytes: int, kind: str, factor: float, turns: int) -> dict[str, float]:
        """An all_reduce beside computing on the same thread: medians of each alone and of both, seconds.

        The computing takes about `factor` times as long as the all_reduce, and never yields.
        """
        tensor = self.zeros(nbytes // 4)
        compute = COMPUTE[kind]
        reduce_alone = [await self._alone(tensor) for _ in range(3)]
        wall = statistics.median(sample[0] for sample in reduce_alone)
        compute(3)
        began = time.perf_counter()
        compute(10)
        count = max(1, round(factor * wall / ((time.perf_counter() - began) / 10)))
        taken: dict[str, list[float]] = {key: [] for key in ("reduce", "compute", "both", "cpu")}
        for _ in range(turns):
            reduce_wall, reduce_cpu = await self._alone(tensor)
            await self.barrier()
            began, cpu = time.perf_counter(), time.process_time()
            compute(count)
            compute_wall = time.perf_counter() - began
            compute_cpu = time.process_time() - cpu
            await self.barrier()
            began = time.perf_counter()
            wait = await self.issue(tensor)
            compute(count)
            await wait()
            both = time.perf_counter() - began
            for key, value in zip(
                taken, (reduce_wall, compute_wall, both, reduce_cpu + compute_cpu), strict=True
            ):
                taken[key].append(value)
        return {key: statistics.median(values) for key, values in taken.items()}

    async def _alone(self, tensor: Any) -> tuple[float, float]:
        await self.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        wait = await self.issue(tensor)
        await wait()
        return time.perf_counter() - began, time.process_time() - cpu


def _products(count: int) -> None:
    for _ in range(count):
        np.matmul(_LEFT, _LEFT, out=_PRODUCT)


def _bytecode(count: int) -> None:
    total = 0
    for _ in range(count):
        for number in range(5000):
            total += number & 3


_LEFT = np.ones((192, 192), np.float32)
_PRODUCT = np.empty_like(_LEFT)
COMPUTE = {"numpy": _products, "python": _bytecode}


def resident() -> int:
    """Bytes of memory of this process; shared pages count by their share (PSS)."""
    with open("/proc/self/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    raise AbsentError("/proc/self/smaps_rollup has no Pss")


class Peak:
    """A sampler of `resident` in a thread while in its block.

    Args:
        every: seconds from one sample to the next.

    Attributes:
        most: the largest sample.
    """

    def __init__(self, every: float) -> None:
        self.most = 0
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(self._every):
            self.most = max(self.most, resident())


def in_a_row(calls: Sequence[Call]) -> None:
    """Make some calls, one after the other."""
    for call in calls:
        call()


def more_descriptors() -> None:
    """Allow as many descriptors as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


__all__ = [
    "COMPUTE",
    "IN_FLIGHT",
    "LOOPBACK",
    "AbsentError",
    "Call",
    "Peak",
    "Peer",
    "in_a_row",
    "more_descriptors",
    "resident",
]
