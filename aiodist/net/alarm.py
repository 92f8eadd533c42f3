"""A timer that can be set to another time: one for many deadlines, or for what is put off."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """A timer of a loop that rings once, at the time to which it was set last.

    Who has many deadlines keeps them, and sets it to the earliest.

    Args:
        loop: whose clock and timers are used.
        rings: called when the time has come. It may set the alarm again.

    Attributes:
        at: loop time at which it rings; infinite where it is not set.
        late: seconds by which it rang late the last time, as the loop did not turn.
    """

    __slots__ = ("_loop", "_rings", "_stopped", "_timer", "at", "late")

    def __init__(self, loop: asyncio.AbstractEventLoop, rings: Callable[[], object]) -> None:
        self.at = math.inf
        self.late = 0.0
        self._loop = loop
        self._rings = rings
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def set(self, at: float = math.inf) -> None:
        """Ring at this loop time, and not when it would have; infinite: not at all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.at = math.inf
        if at < math.inf and not self._stopped:
            self.at = at
            self._timer = self._loop.call_at(at, self._ring)

    def by(self, at: float) -> None:
        """Ring at this loop time, or when it would have, if that is earlier."""
        if at < self.at:
            self.set(at)

    def stop(self) -> None:
        """Never ring again, whatever it is set to."""
        self._stopped = True
        self.set()

    def _ring(self) -> None:
        self.late = self._loop.time() - self.at
        self._timer, self.at = None, math.inf
        self._rings()
