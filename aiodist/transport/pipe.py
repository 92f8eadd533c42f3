"""One direction of an in-process connection: the loop's queue, with a delay.

It holds nothing itself: in a simulation there may be millions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Generic, TypeVar

Delay = Callable[[int, int], float]
"""`delay(src, dst)` → seconds that the next frame takes from one rank to another."""

_Item = TypeVar("_Item")


class Pipe(Generic[_Item]):
    """One direction: items arrive in order, each after its delay, never inside `push`.

    Args:
        loop: its clock and queue.
        deliver: called with each item.
        delay: `delay(src, dst)` → seconds for the next item; None: as soon as the loop turns.
        src: rank that sends.
        dst: rank that receives.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[_Item], None],
        delay: Delay | None,
        src: int,
        dst: int,
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._delay = delay
        self._ends = src, dst
        self._last = 0.0

    def push(self, item: _Item) -> None:
        """Send one item; lost silently when the loop is closed."""
        if self._loop.is_closed():
            return
        if self._delay is None:
            self._loop.call_soon(self._deliver, item)
        else:
            # Timers of equal time may fire in any order: so no two of a pipe have the same.
            at = self._loop.time() + self._delay(*self._ends)
            self._last = at if at > self._last else math.nextafter(self._last, math.inf)
            self._loop.call_at(self._last, self._deliver, item)
