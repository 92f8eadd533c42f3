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
MOST = 6  # that are held at once
TURNS = 20_000  # of the loop, in virtual time


class Held:
    """One copy that is under way.

    Attributes:
        over: the thread has ended, and the loop has heard of it.
    """

    def __init__(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        self._job, self._done = job, done
        self._go, self._there = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None  # from its first step on
        self._ended = self.over = False

    def _run(self) -> None:
        _mine.held = self
        with contextlib.suppress(Exception):
            self._job()
        self._ended = True
        self._there.release()

    def gate(self) -> None:
        """Wait, in the thread, until the test lets it go on."""
        self._there.release()
        assert self._go.acquire(timeout=LIMIT)

    def step(self) -> None:
        """Go on to the next gate: between pieces, or behind the last; then tell the loop."""
        if self.over:
            return
        if self._ended:
            assert self._thread is not None
            self._thread.join(LIMIT)
            self.over = True
            self._done()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run)
            self._thread.start()
        else:
            self._go.release()
        assert self._there.acquire(timeout=LIMIT)

    def finish(self) -> None:
        """Go on to the end, in as few steps as can be."""
        if self._thread is None and not self.over:
            self._job()
            self.over = True
            self._done()
        while not self.over:
            self.step()


_mine = threading.local()


class HeldCopies:
    """The copies of a test that are under way, in the order in which they began.

    Attributes:
        some: set while there are some.
    """

    def __init__(self) -> None:
        self.all: list[Held] = []
        self.some = asyncio.Event()

    def run(self, cost: float, job: Callable[[], None], done: Callable[[], None]) -> bool:
        """In the place of `Offload.run`."""
        if cost < COST:
            job()
            return True
        self.all = [copy for copy in self.all if not copy.over]
        if len(self.all) >= MOST:  # those that wait go on, as they would by themselves
            asyncio.get_running_loop().call_soon(self.all[0].finish)
        self.all.append(Held(job, done))
        self.some.set()
        return False

    def step(self) -> None:
        """Let the first copy that is under way take a step."""
        self.all = [copy for copy in self.all if not copy.over]
        if self.all:
            self.all[0].step()
        else:
            self.some.clear()

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
        for held in self.all:
            held.finish()


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
