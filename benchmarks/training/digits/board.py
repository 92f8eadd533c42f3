"""What the ranks of a job and whoever kills them tell each other: a few numbers in a file that all map.

The killer says up to which step ranks may go. So a training that takes a second goes on until all planned
deaths have come, and nobody waits for a clock.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np

FREE = 1 << 40  # more steps than there are
_HERE, _MEMBER = 1, 2
_LIMIT, _FIRST = 0, 1


class Board:
    """The mapped file.

    Args:
        path: of the file.
        slots: of ranks; 0: it exists, whoever made it said how many.
    """

    def __init__(self, path: Path, slots: int = 0) -> None:
        if slots:
            np.zeros(_FIRST + 2 * slots, np.int64).tofile(path)
        self._words = np.memmap(path, np.int64, "r+")
        self.slots = (len(self._words) - _FIRST) // 2

    # ── the killer's side ────────────────────────────────────────────────────────────────────────────

    def allow(self, step: int) -> None:
        """Let ranks go on up to a step."""
        self._words[_LIMIT] = step

    @property
    def allowed(self) -> int:
        """The step up to which they may go."""
        return int(self._words[_LIMIT])

    def pid(self, slot: int) -> int:
        """The newest process of a slot that has come; 0: none yet."""
        return int(self._words[_FIRST + 2 * slot]) >> 2

    def member(self, slot: int) -> bool:
        """Whether that process takes part in the training."""
        return int(self._words[_FIRST + 2 * slot]) & 3 == _MEMBER

    def step(self, slot: int) -> int:
        """The step that the slot's process does."""
        return int(self._words[_FIRST + 2 * slot + 1])

    # ── a rank's side ────────────────────────────────────────────────────────────────────────────────

    def here(self, slot: int) -> None:
        """Say that this process of a slot has come."""
        self._words[_FIRST + 2 * slot + 1] = 0
        self._words[_FIRST + 2 * slot] = os.getpid() << 2 | _HERE

    async def turn(self, slot: int, step: int) -> None:
        """Say that this process takes part, and does a step; wait until it may."""
        self._words[_FIRST + 2 * slot] = os.getpid() << 2 | _MEMBER
        self._words[_FIRST + 2 * slot + 1] = step
        await asyncio.sleep(0)
        while step > self._words[_LIMIT]:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.001)
