"""The lateness of a one-millisecond ticker on the loop: what a server on the same loop would feel."""

from __future__ import annotations

import asyncio
import time

PERIOD = 1e-3


class Ticker:
    """A ticker, every millisecond between `start` and `stop`, that notes how late each tick came.

    uvloop counts whole milliseconds, so an idle loop shows up to one of them.

    Attributes:
        late: seconds, one for each tick.
    """

    def __init__(self) -> None:
        self.late: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Tick from now on."""
        self._due = time.perf_counter() + PERIOD
        self._handle = self._loop.call_later(PERIOD, self._tick)

    def stop(self) -> list[float]:
        """End it; a tick that is overdue counts with what it is late by now."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            overdue = time.perf_counter() - self._due
            if overdue > 0:
                self.late.append(overdue)
        return self.late

    def _tick(self) -> None:
        now = time.perf_counter()
        self.late.append(max(0.0, now - self._due))
        self._due = now + PERIOD
        self._handle = self._loop.call_later(PERIOD, self._tick)
