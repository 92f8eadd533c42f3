"""The lane for the messages of one direction between two ranks, while it is made and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiodist.backends.nccl.lane import Lane


class LanePair:
    """A lane of messages that may still be in the making: what begins on it waits, in order. On the loop."""

    def __init__(self) -> None:
        self.opening: asyncio.Task[None] | None = None
        self._lane: Lane | None = None
        self._waiting: list[Callable[[Lane], None]] = []

    def use(self, step: Callable[[Lane], None]) -> None:
        """Do something with the lane, once there is one."""
        if self._lane is None:
            self._waiting.append(step)
        else:
            step(self._lane)

    def made(self, lane: Lane) -> None:
        """Take the lane, which has been made."""
        self._lane = lane
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            step(lane)

    def close(self) -> None:
        """Begin nothing more on the lane."""
        if self.opening is not None:
            self.opening.cancel()
