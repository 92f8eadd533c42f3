"""Back-off: how long to pause between attempts at what may work later. Pure: who waits sleeps.

backoff = Backoff(0.01, 0.5, jitter=0.5)
while True:
    try:
        return await connect()
    except ConnectionRefusedError:
        await asyncio.sleep(backoff.next())
"""

from __future__ import annotations

import random
from collections.abc import Callable

_chance = random.SystemRandom().random  # not of the program's own numbers, and never a forked process's again


def pause_after(failed: int, first: float, longest: float) -> float:
    """Seconds to pause after so many failures in a row: twice as long after each.

    Args:
        failed: 1 or more.
        first: seconds after the first one.
        longest: seconds after any of them, at most.
    """
    return min(first * 2.0 ** min(failed - 1, 100), longest)


class Backoff:
    """The pauses between attempts.

    Args:
        first: seconds of the first pause; each is twice as long as the one before.
        longest: seconds of a pause, at most; None: all are as long as the first.
        jitter: the share of each pause that is left to chance, 0 to 1: many processes that failed together
            must not come back together.
        failed: attempts that have failed before.
        chance: gives numbers from 0 to 1.

    Attributes:
        failed: attempts that have failed so far.
    """

    def __init__(
        self,
        first: float,
        longest: float | None = None,
        *,
        jitter: float = 0.0,
        failed: int = 0,
        chance: Callable[[], float] = _chance,
    ) -> None:
        self._first = first
        self._longest = first if longest is None else longest
        self._jitter = jitter
        self._chance = chance
        self.failed = failed

    def next(self) -> float:
        """Seconds to pause after one more failure."""
        self.failed += 1
        jitter = self._jitter * self._chance() if self._jitter else 0.0
        return pause_after(self.failed, self._first, self._longest) * (1 - jitter)
