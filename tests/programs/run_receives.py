"""Runs the programs of `receives`: in virtual time, and over sockets and shared memory on real loops.

In virtual time the copies of large messages take a step now and then, and threads decode large objects for a
while, so that all else happens meanwhile; on real loops threads do both.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import uvloop

from aiodist.backends.host import copies, offload
from aiodist.group import ProcessGroup, objects
from aiodist.testing import run_cluster
from aiodist.testing.clock import VirtualLoop, run_virtual
from aiodist.transport import SocketEndpoint
from aiodist.transport.memory import MemoryNetwork
from tests.backends.cuda.stand_in import Devices
from tests.group.held_copies import HeldCopies, held_copies
from tests.programs.receives import place_of, plan, run_program, staged
from tests.programs.run import Violation, first_of, swallowing

LIMIT = 200.0
"""Seconds of the programs of one job, virtual or not. Nothing takes a tenth of it."""

RANKS = 3


def run(seeds: Sequence[int]) -> tuple[int, list[Violation]]:
    """Run programs of one place: how many, and those that went wrong. After one the others get a new job."""
    violations: list[Violation] = []
    left = list(seeds)
    with swallowing() as swallowed:
        while left:
            job = _Job(left)
            swallowed.clear()
            try:
                job.run()
                assert not swallowed, f"errors that the loop swallowed: {swallowed}"
            except (BaseExceptionGroup, TimeoutError, RuntimeError, AssertionError) as error:
                seed = left[job.at]
                words, trace = first_of(error), "".join(traceback.format_exception(error))
                violations.append(Violation(seed, words, trace))
                left = left[job.at + 1 :]
            else:
                break
        if violations:
            gc.collect()  # what was left behind would be told later
    return len(seeds), violations


class _Job:
    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = seeds
        self.at = 0  # the last that rank 0 has begun

    def run(self) -> None:
        """Run all, or up to the first that goes wrong."""
        place = place_of(self._seeds[0])
        if place == "virtual":
            rng = random.Random(f"{self._seeds[0]} network")
            delays = rng.choice([[0.0], [0.0, 0.0004], [0.0002, 0.003]])
            with held_copies() as held, slow_decoding(rng):
                network = MemoryNetwork(delay=lambda *_: rng.choice(delays))
                run_virtual(self._within(held, rng, network=network))
            return
        first = self._seeds[0]
        backend = "cpu:host,cuda:host" if staged(first) else "host"
        with threads(), devices(), asyncio.Runner(loop_factory=_loop_of(first)) as runner:
            runner.run(self._over_sockets(place, backend))

    async def _over_sockets(self, place: str, backend: str) -> None:
        loop = asyncio.get_running_loop()

        def endpoint(rank: int) -> SocketEndpoint:
            return SocketEndpoint(loop, rank, "job", b"", boot="one" if place == "shm" else str(rank))

        async with asyncio.timeout(LIMIT):
            await run_cluster(RANKS, self._main, endpoint=endpoint, backend=backend, timeout=LIMIT)

    async def _within(self, held: HeldCopies, rng: random.Random, **more: Any) -> None:
        async def steps() -> None:
            while await held.some.wait():
                await asyncio.sleep(rng.choice([0.0003, 0.002]))
                held.step()

        stepping = asyncio.create_task(steps())
        try:
            async with asyncio.timeout(LIMIT):
                await run_cluster(RANKS, self._main, timeout=LIMIT, **more)
        finally:
            stepping.cancel()

    async def _main(self, pg: ProcessGroup) -> None:
        for index, seed in enumerate(self._seeds):
            if pg.rank == 0:
                self.at = index
            await run_program(pg, plan(seed))


@contextlib.contextmanager
def slow_decoding(rng: random.Random) -> Iterator[None]:
    """Have threads decode objects from some 40 KB on, for some virtual time."""

    def run_in_executor(
        loop: asyncio.AbstractEventLoop, executor: object, function: Any, *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = loop.create_future()
        loop.call_later(rng.choice([0, 0.0003, 0.002, 0.01]), lambda: future.set_result(function(*args)))
        return future

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualLoop, "run_in_executor", run_in_executor)
        patch.setattr(objects, "is_slow", lambda data: len(data) >= 40_000)
        yield


@contextlib.contextmanager
def devices() -> Iterator[None]:
    """Have `import cupy` find a stand-in."""
    made = Devices()
    with pytest.MonkeyPatch.context() as patch:
        for name, module in made.modules.items():
            patch.setitem(sys.modules, name, module)
        try:
            yield
        finally:
            made.close()


def _loop_of(seed: int) -> Any:
    return uvloop.new_event_loop if seed // 4 % 2 else None


@contextlib.contextmanager
def threads() -> Iterator[None]:
    """Have threads copy messages from some 80 KB on, in small pieces, though all ranks share a process."""
    run_one = offload.Offload.run

    def run_by_thread(self: Any, *arguments: Any) -> bool:
        self._inline = False
        return run_one(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offload.Offload, "run", run_by_thread)
        patch.setattr(offload, "INLINE_NS", 10_000.0)
        patch.setattr(copies, "PIECE", 64 * 1024)
        patch.setattr(objects, "is_slow", lambda data: len(data) >= 40_000)
        yield
