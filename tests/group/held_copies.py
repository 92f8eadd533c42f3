"""Copies that threads make of large messages, held at each step until a test lets them go on.

So a test decides in which order a copy, a cancel, another receive and a close happen. The loop waits while a
thread takes a step, so virtual time stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiodist.backends.host import copies, offload

COST = 5_000.0
"""Estimated nanoseconds from which on a copy is held: of 40 KB."""

PIECE = 16 * 1024
LIMIT = 30.0  # seconds for one step
TURNS = 20_000  # of the loop, in virtual time


class Held:
    """One copy that is under way.

    Attributes:
        over: the thread has ended, and the loop has heard of it.
    """

    def __init__(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        self._job, self._done = job, done
        self._go, self._there = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)
        self._ended = self.over = False
        self._thread.start()

    def _run(self) -> None:
        _mine.held = self
        self.gate(first=True)
        with contextlib.suppress(Exception):
            self._job()
        self._ended = True
        self._there.release()

    def gate(self, first: bool = False) -> None:
        """Wait, in the thread, until the test lets it go on."""
        if not first:
            self._there.release()
        assert self._go.acquire(timeout=LIMIT)

    def step(self) -> None:
        """Go on to the next gate: between pieces, or behind the last; then tell the loop."""
        if self.over:
            return
        if self._ended:
            self._thread.join(LIMIT)
            self.over = True
            self._done()
            return
        self._go.release()
        assert self._there.acquire(timeout=LIMIT)


_mine = threading.local()


class HeldCopies:
    """The copies of a test, in the order in which they began."""

    def __init__(self) -> None:
        self.all: list[Held] = []

    def run(self, cost: float, job: Callable[[], None], done: Callable[[], None]) -> bool:
        """In the place of `Offload.run`."""
        if cost < COST:
            job()
            return True
        self.all.append(Held(job, done))
        return False

    def step(self) -> None:
        """Let the first copy that is under way take a step."""
        under_way = [held for held in self.all if not held.over]
        if under_way:
            under_way[0].step()

    async def begun(self) -> None:
        """Return when a copy has begun."""
        for _ in range(TURNS):
            if self.all:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("nothing is copied")

    async def finish_all(self, until: asyncio.Future[Any] | None) -> None:
        """Let all go on to their ends, and those that begin, until something is done."""
        for _ in range(TURNS):
            self.finish()
            if until is None or until.done():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it is not done")

    def finish(self) -> None:
        """Let all go on to their ends."""
        while any(not held.over for held in self.all):
            self.step()


@contextlib.contextmanager
def held_copies() -> Iterator[HeldCopies]:
    """Hold the copies of large messages; at the end they have all ended."""
    held, pieces = HeldCopies(), copies.pieces

    def gated(*arrays: Any) -> Iterator[Any]:
        for index, pair in enumerate(pieces(*arrays)):
            if index in (2, 4) and getattr(_mine, "held", None) is not None:
                _mine.held.gate()
            yield pair

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offload.Offload, "run", lambda _, cost, job, done, failed: held.run(cost, job, done))
        patch.setattr(copies, "pieces", gated)
        patch.setattr(copies, "PIECE", PIECE)
        try:
            yield held
        finally:
            held.finish()
