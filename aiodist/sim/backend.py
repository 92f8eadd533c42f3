"""The backend of a simulated group on one rank: it hands every operation to the group's board."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiodist.backends.base import HostEngine, Operation, Reports
from aiodist.base.errors import GroupAborted
from aiodist.base.types import Kind
from aiodist.sim.board import MeetingBoard
from aiodist.sim.engine import RankLoop

DONE_NS = 33_000.0
"""Nanoseconds up to which jobs on buffers are done: of 16,384 quantised elements. All of them are carried."""


class SimBackend(HostEngine):
    """The executor of one simulated group's operations.

    Numbers need no place, members compare their calls as they issue them, messages take no time to come, and
    closing waits for all sends: what other host engines do for that, this one does not.

    Args:
        me: this rank, global.
        loop: the rank's.
        issue: seconds of its time that a call takes.
        boards: gives the board of a group, by its context and the global ranks of its members.
        context: of the group.
        ranks: global ranks of the members.
        reports: the group.

    Attributes:
        me, rank: this rank, global and in the group.
        loop: the rank's.
    """

    def __init__(
        self,
        me: int,
        loop: RankLoop,
        issue: float,
        boards: Callable[[int, Sequence[int]], MeetingBoard],
        context: int,
        ranks: Sequence[int],
        reports: Reports,
    ) -> None:
        self.me, self.rank, self.loop = me, ranks.index(me), loop
        self.reports = reports
        self._issue = issue
        self._boards = boards
        self._board = boards(context, ranks)
        self._board.members[self.rank] = self

    def name_group(self, name: str) -> None:
        """Tell the group's board its name."""
        self._board.name_group(name)

    def submit(self, operation: Operation) -> None:
        """Start an operation."""
        self.loop.compute(self._issue)
        kind = operation.call.kind
        if kind is Kind.send:
            self._board.send(self, operation)
        elif kind is Kind.recv:
            self._board.recv(self, operation)
        else:
            self._board.collective(self, operation)

    def off_loop(self, cost_ns: float, job: Callable[[], None], done: Callable[[], None]) -> bool:
        """Take the time that a job on buffers needs. Large buffers carry no values: theirs is not done."""
        self.loop.compute(cost_ns * 1e-9)
        if cost_ns <= DONE_NS:
            job()
        return True

    def abort(self, released: Callable[[], None]) -> None:
        """Stop everything, on the other members too."""
        released()
        self._board.break_all(GroupAborted(self.me, "the group was broken there"), self.rank)

    def subgroup(self, context: int, ranks: Sequence[int], reports: Reports) -> SimBackend:
        """The backend of a new group."""
        return SimBackend(self.me, self.loop, self._issue, self._boards, context, ranks, reports)

    def close_receives(self, error: Callable[[], BaseException]) -> None:
        """End the receives for which nothing has come."""
        for side in self._board.waiting(self):
            self._board.receives[self.rank, side.operation.tag].remove(side)
            side.operation.fail(error())
