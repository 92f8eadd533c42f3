"""An operation that messages carry: its signature is published like any other."""

from __future__ import annotations

from collections.abc import Callable

from aiodist.backends.host.local.exchange import Exchange


class Wired(Exchange):
    """The exchange of an operation that messages carry; see the module.

    Attributes:
        start: called when all ranks have published the same.
    """

    __slots__ = ("start",)
    start: Callable[[], None]

    def drop(self) -> None:
        super().drop()
        self.start = _nothing  # it holds the collective, and that the user's arrays

    def advance(self) -> bool:
        """Whether all ranks have published the operation."""
        if not self.arrived():
            return False
        self.start()
        return True


def _nothing() -> None:
    """Do nothing."""
