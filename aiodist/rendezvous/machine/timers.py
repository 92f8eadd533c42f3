"""Timers of a store: what ends at which time, in the order of time."""

from __future__ import annotations

import heapq
import itertools
from typing import Any, Protocol

_FEW = 64  # timers that are kept, true or not, before somebody looks which ones are


class Table(Protocol):
    """An owner of what ends. A timer that is set again replaces none: the owner knows which is true."""

    def is_due(self, subject: Any, at: float) -> bool:
        """Whether a timer that was set for `at` still means something."""


class Timers:
    """A heap of timers. Those without a meaning any more are skipped, and thrown away where they are many."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Table, Any]] = []
        self._numbers = itertools.count()  # two of one time end in the order in which they were set
        self._most = _FEW

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first(self) -> float | None:
        """The time of the next one, true or not."""
        return self._heap[0][0] if self._heap else None

    def set(self, at: float, table: Table, subject: Any) -> None:
        """Have `pop` return (table, subject) from `at` on, unless it has lost its meaning by then."""
        heapq.heappush(self._heap, (at, next(self._numbers), table, subject))
        if len(self._heap) > self._most:
            self._heap = [timer for timer in self._heap if timer[2].is_due(timer[3], timer[0])]
            heapq.heapify(self._heap)
            self._most = 2 * len(self._heap) + _FEW

    def due(self, now: float) -> bool:
        """Whether `pop` would return one."""
        heap = self._heap
        while heap and not heap[0][2].is_due(heap[0][3], heap[0][0]):
            heapq.heappop(heap)
        return bool(heap) and heap[0][0] <= now

    def pop(self, now: float) -> tuple[Table, Any] | None:
        """Take out the next one that is due, or None."""
        if not self.due(now):
            return None
        _, _, table, subject = heapq.heappop(self._heap)
        return table, subject
