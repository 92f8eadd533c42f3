"""Internal operations of the host engine, which are parts of a user's: comparisons, envelopes, stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiodist.backends.base import Given, Operation
from aiodist.backends.work import Driver, Work
from aiodist.base.types import Call


class InnerOperation(Operation):
    """An operation at whose end something goes on, and no Work ends.

    Args:
        call: what ranks agree on.
        work: the user's: an await of that polls for this.
        source, target: as of `Operation`.
        then: called at the end. It may be set later, where it needs the `result`.
        of: the user's operation, if it is a receive that may end as long as nothing has come for this part.
        more: fields of `Operation`.
    """

    __slots__ = ("of", "then")

    def __init__(
        self,
        call: Call,
        work: Work[Any],
        source: Given = None,
        target: Given = None,
        *,
        then: Callable[[], None] | None = None,
        of: Operation | None = None,
        **more: Any,
    ) -> None:
        super().__init__(call, work, source, target, None, _not_in_flight, **more)
        self.then = _nothing if then is None else then
        self.of = of

    @property
    def whole(self) -> Operation | None:
        """The user's operation that this one is a part of; see `Operation`."""
        return self.of

    def succeed(self) -> None:
        """End the operation, and keep nothing of what comes then: it may refer to this one."""
        then, self.then = self.then, _nothing
        then()


class Undriven:
    """A stand-in for a Work that nobody awaits."""

    __slots__ = ()

    def _driven_by(self, driver: Driver) -> None:
        """Do nothing: nobody polls."""


def _nothing() -> None:
    """Do nothing: it goes on by itself."""


def _not_in_flight(operation: Operation) -> None:
    """Do nothing: the user's operation is in flight, and this is a part of it."""
