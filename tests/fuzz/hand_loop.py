"""An event loop that is turned by hand, in a time of its own: a fuzzed connection costs microseconds.

Readers are called in every turn, whether there is something to read or not. What a real loop would
swallow and log is kept in `errors`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Any


class Handle:
    """A callback that is due."""

    __slots__ = ("_args", "_callback")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args = args

    def cancel(self) -> None:
        """Never call it."""
        self._callback = None

    def run(self) -> None:
        """Call it."""
        if self._callback is not None:
            self._callback(*self._args)


class HandLoop:
    """The part of an event loop that connections use."""

    def __init__(self) -> None:
        self.now = 0.0
        self.errors: list[BaseException] = []
        self._soon: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._numbers = itertools.count()
        self._readers: dict[int, Handle] = {}
        self._writers: dict[int, Handle] = {}

    def time(self) -> float:
        """Its clock."""
        return self.now

    def is_closed(self) -> bool:
        """Never."""
        return False

    def get_debug(self) -> bool:
        """No."""
        return False

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_soon(self, callback: Callable[..., object], *args: Any, context: object = None) -> Handle:
        """In the next turn."""
        handle = Handle(callback, args)
        self._soon.append(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Handle:
        """After `delay` seconds."""
        return self.call_at(self.now + delay, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        """At a time, which may be infinity, as on a real loop."""
        if math.isnan(when):
            raise ValueError("no loop can wait until it is not a number")
        handle = Handle(callback, args)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        """Called in every turn."""
        self._readers[fd] = Handle(callback, args)

    def remove_reader(self, fd: int) -> bool:
        """No more."""
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        """Called in every turn."""
        self._writers[fd] = Handle(callback, args)

    def remove_writer(self, fd: int) -> bool:
        """No more."""
        return self._writers.pop(fd, None) is not None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a real loop logs and swallows."""
        self.errors.append(context.get("exception") or RuntimeError(str(context)))

    def turn(self, turns: int = 1) -> None:
        """Call what is due and every reader and writer; what any of them raises comes out of here."""
        for _ in range(turns):
            for _ in range(len(self._soon)):
                self._soon.popleft().run()
            for table in (self._readers, self._writers):
                for fd, handle in list(table.items()):
                    if table.get(fd) is handle:
                        handle.run()
        if self.errors:
            raise self.errors[0]

    def run_until_idle(self) -> None:
        """Turn until nothing is due; at most a thousand times."""
        self.turn()
        for _ in range(1000):
            if not self._soon:
                return
            self.turn()
        raise RuntimeError("this loop never comes to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, with all timers that become due."""
        end = self.now + seconds
        for _ in range(10_000):
            if not self._timers or self._timers[0][0] > end:
                break
            self.now, _, handle = heapq.heappop(self._timers)
            handle.run()
        self.now = end
        self.run_until_idle()
