"""The thread that runs large operations, so that the loop need not (law 7).

It resumes the operations of all groups in turn, each as far as its peers let it, and never waits for one
alone: ranks may run the operations of different groups in different order. It needs the interpreter only
where an operation begins, has something to copy that is strided, or ends. Where none can go on it polls for a
short while, letting other processes have the core at every look, and then sleeps until a bell rings.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

from aiodist import _engine
from aiodist.backends.host.local.hub import ASLEEP_BULK, Hub, engine
from aiodist.backends.threads import post
from aiodist.observe.recorder.layout import ARRIVED

POLL = 0.0002
"""Seconds without progress, or without work, until the thread sleeps. Waking it takes about 100 µs where its
core has gone idle meanwhile; in a loop of large operations the next one comes sooner than that."""

Ended = Callable[["_engine.Exchange", Exception | None], None]


class Bulk:
    """One process's thread for large operations. It starts with the first one.

    Args:
        hub: whose bell wakes it.
        loop: where `ended` is called.
    """

    def __init__(self, hub: Hub, loop: AbstractEventLoop) -> None:
        self._hub = hub
        self._loop = loop
        self._inbox: deque[tuple[_engine.Exchange, Ended]] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._sleeps = 0
        self._news = engine().Signal()

    def submit(self, exchange: _engine.Exchange, ended: Ended) -> None:
        """Run an operation's steps. `ended(exchange, error)` is called on the loop when they are over, or
        when the thread has let go of an exchange that is `ended`."""
        self._inbox.append((exchange, ended))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="aiodist-local", daemon=True)
            self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Have the thread look around: something is new, or dead."""
        self._news.set()
        self._hub.segment.wake_thread()

    def close(self) -> None:
        """End the thread. What it still runs is dropped."""
        if self._thread is not None:
            self._closing = True
            self.wake()
            self._thread.join()
            self._thread = None

    # ── in the thread ────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        own, any_bell = select.poll(), select.poll()
        own.register(self._hub.segment.thread_bell, select.POLLIN)
        any_bell.register(self._hub.segment.thread_bell, select.POLLIN)
        any_bell.register(self._hub.segment.bell, select.POLLIN)
        active: list[tuple[_engine.Exchange, Ended]] = []
        while True:
            self._news.clear()  # before the looks: what is said from now on ends `drive`
            if self._closing:
                return
            while self._inbox:
                active.append(self._inbox.popleft())
            if self._go_on(active, POLL) or self._inbox or self._closing:
                continue
            if active:
                self._sleep(any_bell, active)
            else:
                own.poll()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._hub.segment.thread_bell)

    def _go_on(self, active: list[tuple[_engine.Exchange, Ended]], seconds: float) -> bool:
        """Resume all, until one of them stops, or all that it waits for first have come, or nothing moves for
        so long → whether one has stopped."""
        stopped = False
        outcomes = engine().drive([exchange for exchange, _ in active], seconds, self._news)
        for entry, outcome in zip(list(active), outcomes, strict=False):
            exchange, ended = entry
            error: Exception | None = None
            if exchange.has_arrived and not exchange.seen:
                exchange.seen = stopped = True
                exchange.operation.happened(ARRIVED)
            try:
                over = exchange.ended or (outcome != 0 and exchange.settle(outcome))
            except Exception as caught:
                over, error = True, caught
            stopped = stopped or outcome != 0 or over
            if over:
                active.remove(entry)
                post(self._loop, ended, exchange, error)
        return stopped

    def _sleep(self, bells: select.poll, active: list[tuple[_engine.Exchange, Ended]]) -> None:
        """Sleep until a peer has gone on, or something is new."""
        hub = self._hub
        self._sleeps += 1
        hub.words[ASLEEP_BULK] = self._sleeps
        engine().fence()
        if not (self._inbox or self._closing or self._go_on(active, 0.0)):
            meant = False
            while not meant:
                rung = bells.poll()
                loop, bulk = hub.segment.hear()
                if loop:
                    hub.call(hub.woken)
                meant = bulk or any(fd == hub.segment.thread_bell for fd, _ in rung)
        hub.words[ASLEEP_BULK] = 0
