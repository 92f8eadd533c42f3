"""Polling a socket for some microseconds, where it pays, before sleeping on it.

Waking a sleeping process on another core costs 20 to 40 µs, more than everything else in a round trip to
a store on this host. So both ends poll again first, within two bounds: a wait polls for at most `POLL`
seconds, and who polls with success asks `overdue` then and lets the loop turn if so: about every `TURN`
seconds, for one asker a turn (law 7). Where polling was in vain it is tried more and more rarely, so a
store that is far away, busy, or in this very loop costs next to nothing. A wait gives the core to others that
want it (`sched_yield`) before each poll. All in all a request takes a third of the CPU time that it takes
with sleeping in between, also where 5 other processes want the same 2 cores.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from aiodist.net.turn import Turn

POLL = 50e-6
TURN = 500e-6
_RAREST = 256  # of so many waits one polls at least

_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class Poller:
    """The decision for one connection whether to poll, by how it went before."""

    __slots__ = ("_misses", "_skip", "_turn")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = Turn.of(loop)
        self._misses = 0
        self._skip = 0

    def only(self, asker: object) -> bool:
        """Whether nobody else asked in this turn; see `Turn.only`."""
        return self._turn.only(asker)

    def overdue(self) -> bool:
        """Whether the loop has not turned for too long."""
        return self._turn.overdue(TURN)

    def poll(self, once: Callable[[], bool]) -> bool:
        """Call `once` for a bounded time until it says True → whether it did (not where it does not pay)."""
        if self._skip:
            self._skip -= 1
            return False
        end = time.monotonic() + POLL
        while True:
            _give_way()  # first: what was just asked for cannot be there yet
            if once():
                self._misses = 0
                return True
            if time.monotonic() > end:
                self._misses += 1
                self._skip = min((1 << self._misses) - 2, _RAREST)  # one miss alone means nothing
                return False
