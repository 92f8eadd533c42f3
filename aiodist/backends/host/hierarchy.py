"""Collectives of a group that spans hosts: on each host through shared memory, between hosts in shards.

Ranks form a table: a row for each host, a column for each place on it. A row is this rank's *inner* group, a
column its *outer* one; each is a host backend of its own, with its own context and numbers.

An all_reduce, say, is a reduce_scatter in the inner groups, an all_reduce of its shard in the outer ones, and
an all_gather in the inner ones. What each operation does step by step is in `steps`. So n bytes on hosts with
m ranks each cross the network as m shards of n/m bytes, side by side, and a host sends what one rank would.
An element is reduced by one rank of each host and then by those in one outer group, which all get the same
bits; the ranks of a host copy them (law 3).

The numbers in the inner and the outer group are taken when the user's operation takes its own, so they are
alike on all ranks, whatever ends first. An internal call has the user's in its `detail`, and so in its
signature: it agrees only where the user's calls do (law 4).
"""

from __future__ import annotations

from functools import partial

from aiodist.backends.base import Operation
from aiodist.backends.host.grid import Grid
from aiodist.backends.host.stages import StageRun
from aiodist.backends.host.steps import STEPS, goes_by_hosts, parts_of, pieces_of
from aiodist.base.environment.thresholds import Thresholds
from aiodist.base.types import Call

_PIECE = 5 << 18
"""Bytes that go their way on their own, so that hosts and cables work at the same time."""


def piece_size(limits: Thresholds) -> int:
    """Bytes of a piece."""
    return max(1, min(limits.inline, _PIECE))


class Hierarchy:
    """The operations of one group that go by its table.

    Args:
        grid: the table.
        limits: thresholds.
    """

    def __init__(self, grid: Grid, limits: Thresholds) -> None:
        self.grid = grid
        self._least = max(limits.hierarchy, 1)
        self._piece = piece_size(limits)
        self._numbers: dict[int, tuple[list[int], list[int]]] = {}
        self._running: dict[int, StageRun] = {}

    def chosen(self, operation: Operation, nbytes: int, reserved: bool) -> bool:
        """Whether the hierarchy carries out an operation; all ranks agree on it.

        Args:
            operation: the operation, which begins now.
            nbytes: of its buffer, as all ranks agree.
            reserved: its number was taken before. Where it was not known then what would come, ranks may have
                begun other operations since, not all the same: it can have no internal numbers any more.
        """
        if reserved:
            return operation.call.seq in self._numbers
        return self._takes(operation, nbytes)

    def reserve(self, operation: Operation, nbytes: int) -> None:
        """Take the internal numbers of an operation that begins later."""
        if self._takes(operation, nbytes):
            self._numbers[operation.call.seq] = self._take(operation.call)

    def begin(self, operation: Operation) -> None:
        """Start an operation."""
        call = operation.call
        numbers = self._numbers.pop(call.seq, None)
        inner, outer = self._take(call) if numbers is None else numbers
        run = StageRun(self.grid, operation, inner, outer, partial(self._ended, operation))
        self._running[call.seq] = run
        run.start(STEPS[call.kind])

    def _ended(self, operation: Operation) -> None:
        del self._running[operation.call.seq]
        operation.succeed()

    def halt(self) -> None:
        """Take part in nothing any more: members disagree."""
        self._stop_runs()
        self.grid.inner.halt()
        self.grid.outer.halt()

    def abort(self) -> None:
        """Stop everything; the group's release is held while anything here touches a buffer."""
        self._stop_runs()
        self.grid.inner.abort()
        self.grid.outer.abort()

    def _stop_runs(self) -> None:
        for run in self._running.values():
            run.halted = True

    def forget(self) -> None:
        """Let go of what was in flight: the group has broken, and no buffer is touched any more."""
        self._running.clear()

    def retire(self) -> None:
        """Forget the group, which is gone for good."""
        self.grid.inner.retire()
        self.grid.outer.retire()

    def _takes(self, operation: Operation, nbytes: int) -> bool:
        even = operation.source_sizes is None and operation.target_sizes is None
        size = self.grid.channels.size
        return even and goes_by_hosts(operation.call.kind, nbytes, size, self._least)

    def _take(self, call: Call) -> tuple[list[int], list[int]]:
        """Numbers in the inner group, and in the outer one where this rank has a part in it."""
        grid, pieces = self.grid, pieces_of(call, self._piece)
        inner, outer = parts_of(call, grid)
        return (
            [grid.inner.number(call.seq) for _ in range(inner * pieces)],
            [grid.outer.number(call.seq) for _ in range(outer * pieces)],
        )
