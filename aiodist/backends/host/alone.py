"""The fast path of a group of one: each collective is a copy, and over when the call returns.

Most programs run alone first. The general path makes a request, an operation, a schedule and an entry in
flight for what is a copy at most: 31 µs. See `local.fast` for what is a case for it; larger arrays than the
loop may copy go the general way.
"""

from __future__ import annotations

from sys import _getframe
from typing import Any

from aiodist.backends.base import Array, Numbers
from aiodist.backends.host.local.board import MASK
from aiodist.backends.host.local.fast import CallTemplate, Fast
from aiodist.backends.host.local.plan import Path
from aiodist.backends.work import GroupState, Work
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.types import Call


class _Copy:
    """The plan of calls that are alike: a copy.

    Attributes:
        call: one of them, but for its number.
        path: 'slot': parts of all members lie side by side; 'bulk': too large for the loop.
    """

    def __init__(self, call: Call, path: Path) -> None:
        self.call = call
        self.path = path


class _Plans:
    """The plans of a group of one, where other groups have their exchanges."""

    board: Any = None
    hub: Any = None

    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits

    def plan(self, call: Call, nbytes: int) -> Any:
        """The plan of calls like this one."""
        return _Copy(call, Path.slot if nbytes <= self._limits.inline else Path.bulk)

    def note_all(self) -> None:
        """Do nothing: nothing is ever pending."""


class Alone(Fast):
    """The fast path; see the module.

    Args:
        limits: thresholds.
        issuer: what the group's Works have in common.
        numbers: of the group's operations.
    """

    def __init__(self, limits: Thresholds, issuer: GroupState, numbers: Numbers) -> None:
        plans: Any = _Plans(limits)
        super().__init__(plans, {}, issuer, numbers, 0, 1)
        self._calls: list[Call | None] = [None] * (MASK + 1)

    def _issue(
        self, case: CallTemplate, send: list[Array], recv: list[Array], result: Any, held: bool, depth: int
    ) -> Work[Any]:
        numbers, call = self._numbers, case.plan.call
        seq = numbers.issued
        numbers.issued = seq + 1
        noted = self._track.note(case.sort, seq, _getframe(depth + 2))
        if recv and recv[0] is not send[0]:  # the root of a broadcast gets nothing
            recv[0][...] = send[0]
        self._calls[seq & MASK] = call
        work: Work[Any] = Work(self._issuer, call, held, None, result, seq, noted)
        work._finish(result)
        return work

    def call(self, seq: int) -> Call | None:
        """The call that was issued here under a number, unless that is long ago."""
        call = self._calls[seq & MASK]
        return call.numbered(seq) if call is not None and self._numbers.issued - seq <= MASK else None
