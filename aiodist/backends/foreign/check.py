"""Internal operations of the host engine, which stand beside a user's: comparisons, envelopes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aiodist.backends.base import Array, Operation
from aiodist.types import Call
from aiodist.work import Driver, Work


class Check(Operation):
    """An internal operation of the host engine, which goes on with something else than a Work's end."""

    __slots__ = ("then",)

    def __init__(
        self,
        call: Call,
        work: Work[Any],
        then: Callable[[], None],
        source: Array | list[Array] | None = None,
        target: Array | list[Array] | None = None,
        peer: int = -1,
        tag: int = 0,
        senders: Sequence[int] = (),
    ) -> None:
        # The user's Work bears it: an await of that polls for this.
        super().__init__(call, work, source, target, None, _not_in_flight, peer, tag, senders)
        self.then = then

    def succeed(self) -> None:
        """End the operation."""
        self.then()


class Undriven:
    """A stand-in for a Work that nobody awaits."""

    __slots__ = ("_driver",)

    def __init__(self) -> None:
        self._driver: Driver | None = None


def _not_in_flight(operation: Operation) -> None:
    """Do nothing: the user's operation is in flight, and this is a part of it."""
