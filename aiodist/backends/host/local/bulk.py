"""The thread that runs large operations, so that the loop need not (law 7).

It resumes the operations of all groups in turn, each as far as its peers let it, and never waits for one
alone: ranks may run the operations of different groups in different order. Where none can go on it polls
for a short while, letting other threads have the GIL and other processes the core at every look, and then
sleeps until a bell rings.

Python code on the loop makes a thread wait for the GIL up to the interpreter's switch interval after every
block. While bulk work runs the interval is shortened (`SWITCH`): beside pure bytecode a prototype took 47 ms
a block with the usual 5 ms, and 3.5 ms with 0.2 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

from aiodist.backends.host.local.exchange import Exchange
from aiodist.backends.host.local.hub import ASLEEP_BULK, Hub
from aiodist.backends.threads import post

SWITCH = 0.0005
"""Seconds of the interpreter's switch interval while bulk work runs."""

POLL = 0.0002
"""Seconds without progress, or without work, until the thread sleeps. Waking it takes about 100 µs where its
core has gone idle meanwhile; in a loop of large operations the next one comes sooner than that."""

Ended = Callable[[Exchange, Exception | None], None]


class Bulk:
    """One process's thread for large operations. It starts with the first one.

    Args:
        hub: whose bell wakes it.
        loop: where `ended` is called.
    """

    def __init__(self, hub: Hub, loop: AbstractEventLoop) -> None:
        self._hub = hub
        self._loop = loop
        self._inbox: deque[tuple[Exchange, Ended]] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._sleeps = 0

    def submit(self, exchange: Exchange, ended: Ended) -> None:
        """Run an operation's steps. `ended(exchange, error)` is called on the loop when they are over, or
        when the thread has let go of an exchange that is `ended`."""
        self._inbox.append((exchange, ended))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="aiodist-local", daemon=True)
            self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Have the thread look around: something is new, or dead."""
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
        active: list[tuple[Exchange, Ended]] = []
        switch = sys.getswitchinterval()
        idle_since: float | None = None
        while not self._closing:
            if self._inbox:
                if not active:
                    switch = sys.getswitchinterval()
                    if switch > SWITCH:
                        sys.setswitchinterval(SWITCH)
                while self._inbox:
                    active.append(self._inbox.popleft())
            moved = bool(active) and self._go_on(active)
            if not active and sys.getswitchinterval() == SWITCH:
                sys.setswitchinterval(switch)
            if moved:
                idle_since = None
                continue
            now = time.monotonic()
            if idle_since is None or now - idle_since < POLL:
                idle_since = idle_since or now
                os.sched_yield()
                continue
            if active:
                self._sleep(any_bell, active)
            elif not (self._inbox or self._closing):
                own.poll()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._hub.segment.thread_bell)
            idle_since = None
        if sys.getswitchinterval() == SWITCH:
            sys.setswitchinterval(switch)

    def _go_on(self, active: list[tuple[Exchange, Ended]]) -> bool:
        """Resume all → whether anything happened."""
        moved = False
        for entry in list(active):
            exchange, ended = entry
            moves = exchange.moves
            error: Exception | None = None
            try:
                over = exchange.ended or exchange.advance()
            except Exception as caught:
                over, error = True, caught
            if over:
                active.remove(entry)
                if exchange.generator is not None:
                    exchange.generator.close()
                post(self._loop, ended, exchange, error)
            moved = moved or over or exchange.moves != moves
        return moved

    def _sleep(self, bells: select.poll, active: list[tuple[Exchange, Ended]]) -> None:
        """Sleep until a peer has gone on, or something is new."""
        hub = self._hub
        self._sleeps += 1
        hub.words[ASLEEP_BULK] = self._sleeps
        hub.fence_bulk()
        if not (self._inbox or self._closing or self._go_on(active)):
            meant = False
            while not meant:
                rung = bells.poll()
                loop, bulk = hub.segment.hear()
                if loop:
                    hub.call(hub.woken)
                meant = bulk or any(fd == hub.segment.thread_bell for fd, _ in rung)
        hub.words[ASLEEP_BULK] = 0
