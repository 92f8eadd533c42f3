"""The order in which receives of one tag end, whose messages are here.

A receive that has got its message may be given up until its caller has the result: the cancel of a task takes
a turn of the loop for each task, group of tasks or `wait_for` between that task and the receive. Then its
message goes to the next receive, and so on (`claims`). So a receive ends a turn later than the one before it,
when the caller of that one has its result. If nobody awaits that one, two turns later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from aiodist.backends.host.channels import Channels
from aiodist.backends.host.held_up import HeldUp
from aiodist.work import Work


class _End(NamedTuple):
    """The end of a receive that waits: its handle, the sender of its message, and what ends it."""

    work: Work[Any]
    source: int
    end: Callable[[], None]


class Ends:
    """The receives of one group on one rank that have their messages and wait to end.

    Args:
        held_up: the group's.
        channels: the group's, of which the loop is used.
    """

    def __init__(self, held_up: HeldUp, channels: Channels) -> None:
        self._held_up = held_up
        self._channels = channels
        self._line: dict[int, deque[_End]] = {}  # by tag, in order

    def holds(self, tag: int) -> bool:
        """Whether receives with a tag wait."""
        return tag in self._line

    def waits(self, work: Work[Any], tag: int, source: int) -> bool:
        """Whether a receive that has its message has to wait."""
        return tag in self._line or self._held_up.is_untold_before(work, tag, source)

    def add(self, work: Work[Any], tag: int, source: int, end: Callable[[], None]) -> None:
        """Have `end()` called in its turn. It does nothing if the receive has lost its message by then."""
        line = self._line.get(tag)
        if line is None:
            line = self._line[tag] = deque()
            self._channels.loop.call_soon(self._go_on, tag, 1)
        line.append(_End(work, source, end))

    def clear(self) -> None:
        """End none of them."""
        self._line.clear()

    def _go_on(self, tag: int, more: int) -> None:
        """End the next ones; `more` turns later at the latest."""
        while line := self._line.get(tag):
            work, source, end = line[0]
            if more and self._held_up.is_untold_before(work, tag, source):
                self._channels.loop.call_soon(self._go_on, tag, more - 1)
                return
            end()  # what it adds stands behind
            if line:  # else they were cleared
                line.popleft()
            more = 2
        self._line.pop(tag, None)
