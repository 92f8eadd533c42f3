"""One timer for the deadlines of all calls of a connection."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from aiodist.group.services.under_way import UnderWay


class Alarm:
    """A timer that rings at the earliest deadline in a table, or before it.

    Args:
        loop: the event loop.
        table: of calls.
        rings: called with the time; it takes out what is late, so that `due` is later then.

    Attributes:
        at: when it rings. Whoever enters a call that is due earlier calls `set`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, table: UnderWay[Any], rings: Callable[[float], object]
    ) -> None:
        self.at = math.inf
        self._loop = loop
        self._table = table
        self._rings = rings
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def set(self) -> None:
        """Ring when the table says so."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.at = math.inf
        if self._table.due < math.inf and not self._stopped:
            self.at = self._table.due
            self._timer = self._loop.call_at(self.at, self._ring)

    def stop(self) -> None:
        """Never ring again."""
        self._stopped = True
        self.set()

    def _ring(self) -> None:
        self._rings(self._loop.time())
        self.set()
