"""A loop whose clock jumps: simulated seconds cost nothing, and the same seed gives the same run."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SimulationStuck(RuntimeError):
    """Nothing is ready and no timer is set: in real time this would wait for ever."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps: where nothing is ready it moves the clock to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise SimulationStuck("nothing is ready and no timer is set")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time. `time()` begins at 0 and moves only when nothing else can happen."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Virtual seconds."""
        return self._clock.now

    @property
    def _clock_resolution(self) -> float:
        # asyncio runs timers that are due before now + this. The real clock's nanosecond is lost beside half
        # a year of seconds, and a timer that is due exactly now would never run.
        return math.ulp(self._clock.now)

    @_clock_resolution.setter
    def _clock_resolution(self, seconds: float) -> None:
        """What asyncio believes; the virtual clock knows better."""


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time.

    Raises:
        SimulationStuck: it waits for something that will never happen.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
