"""A set of numbers that forgets the oldest ones: of groups that are gone, of which there is no end."""

from __future__ import annotations

from collections import OrderedDict

MOST = 1 << 16


class Recent(OrderedDict[int, None]):
    """The numbers that were added last; `in` says whether one is there.

    Args:
        most: that are kept.
    """

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self._most = most

    def add(self, number: int) -> None:
        """Add a number, as the newest one."""
        self[number] = None
        self.move_to_end(number)
        if len(self) > self._most:
            self.popitem(last=False)
