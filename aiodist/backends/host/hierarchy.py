"""Collectives of a group that spans hosts: on each host through shared memory, between hosts in shards.

Ranks form a table: a row for each host, a column for each place on it. A row is this rank's *inner* group, a
column its *outer* one; each is a host backend of its own, with its own context and numbers.

    all_reduce   inner reduce_scatter ─▶ outer all_reduce of the shard ─▶ inner all_gather
    broadcast    outer, in the root's column ─▶ inner, from that column
    all_gather   outer ─▶ inner

So n bytes on hosts with m ranks each cross the network as m shards of n/m bytes, side by side, and a host
sends what one rank would. An element is reduced by one rank of each host and then by those in one outer
group, which all get the same bits; the ranks of a host copy them (law 3). What an operation does step by step
is in `stages`.

The numbers in the inner and the outer group are taken when the user's operation takes its own, so they are
alike on all ranks, whatever ends first. An internal call has the user's in its `detail`, and so in its
signature: it agrees only where the user's calls do (law 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aiodist.backends.base import Array, Operation
from aiodist.backends.host.level import Level, context_within
from aiodist.backends.host.stages import STEPS, Run, pieces_of
from aiodist.errors import UsageError
from aiodist.types import Call, Kind

if TYPE_CHECKING:
    from aiodist.backends.host.backend import HostBackend
    from aiodist.backends.host.engine import HostEngine
    from aiodist.environment.thresholds import Thresholds


class Hierarchy:
    """See the module.

    Args:
        backend: the group's backend.
        engine: makes the internal ones.
        hosts: the group's members, host by host, as many on each.
        limits: thresholds.
    """

    def __init__(
        self, backend: HostBackend, engine: HostEngine, hosts: Sequence[Sequence[int]], limits: Thresholds
    ) -> None:
        self.backend = backend
        self.hosts = hosts
        self.place = {
            member: (row, column) for row, host in enumerate(hosts) for column, member in enumerate(host)
        }
        self.row, self.column = self.place[backend.rank]
        self.inner = Level(backend, engine, "inner", hosts[self.row])
        self.inner.prepare()
        self.outer = Level(backend, engine, "outer", [host[self.column] for host in hosts])
        self._least = max(limits.hierarchy, 1)
        self._piece = max(1, limits.inline * 5 // 4)  # so much that a thread does the work (law 7)
        self._numbers: dict[int, tuple[list[int], list[int]]] = {}
        self._running: dict[int, Run] = {}

    def chosen(self, operation: Operation, nbytes: int, reserved: bool) -> bool:
        """Whether an operation goes this way; all ranks agree on it.

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
        run = self._running[call.seq] = Run(self, operation, inner, outer)
        run.start(STEPS[call.kind])

    def ended(self, run: Run) -> None:
        """An operation has ended well."""
        del self._running[run.operation.call.seq]
        self.backend.finished(run.operation)

    def doom(self) -> None:
        """Take part in nothing any more: members disagree."""
        for run in self._running.values():
            run.dead = True
        self.inner.doom()
        self.outer.doom()

    def abort(self) -> None:
        """Stop everything; `quiet` says when nothing touches a buffer."""
        for run in self._running.values():
            run.dead = True
        self.inner.abort()
        self.outer.abort()

    def quiet(self) -> bool:
        """After `abort`: whether this process touches no buffer any more."""
        return self.inner.quiet and self.outer.quiet and not any(run.busy for run in self._running.values())

    def forget(self) -> None:
        """Let go of what was in flight: the group has broken, and no buffer is touched any more."""
        self._running.clear()

    def retire(self) -> None:
        """The group is gone for good."""
        self.inner.retire()
        self.outer.retire()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory that this host's ranks read where it lies, if there is room."""
        try:
            return self.backend.empty(shape, dtype)
        except UsageError:
            return np.empty(shape, dtype)

    def _takes(self, operation: Operation, nbytes: int) -> bool:
        even = operation.source_sizes is None and operation.target_sizes is None
        return even and nbytes >= self._least and operation.call.kind in STEPS

    def _take(self, call: Call) -> tuple[list[int], list[int]]:
        """Numbers in the inner group, and in the outer one where this rank has a part in it."""
        pieces = pieces_of(call, self._piece)
        each = 2 if call.kind is Kind.all_reduce else 1
        inner = [self.inner.number(call.seq) for _ in range(each * pieces)]
        if call.kind is Kind.broadcast and self.place[call.root][1] != self.column:
            return inner, []
        return inner, [self.outer.number(call.seq) for _ in range(pieces)]


def hierarchy_of(backend: HostBackend, engine: HostEngine) -> Hierarchy | None:
    """The hierarchy of a group with as many members, two at least, on each of several hosts; else None."""
    hosts = _table(engine, backend.ranks)
    return Hierarchy(backend, engine, hosts, engine.limits) if hosts else None


def levels_of(engine: HostEngine, context: int, ranks: Sequence[int]) -> list[int]:
    """Contexts of the internal groups that this process would have in a group's hierarchy; [] without one."""
    for host in _table(engine, ranks):
        inner = [ranks[member] for member in host]
        if engine.rank in inner:
            column = inner.index(engine.rank)
            outer = [ranks[row[column]] for row in _table(engine, ranks)]
            return [context_within(context, "inner", inner), context_within(context, "outer", outer)]
    return []


def _table(engine: HostEngine, ranks: Sequence[int]) -> list[list[int]]:
    """Group ranks, host by host, where each of several hosts has as many, two at least; else []."""
    hosts = engine.by_host(ranks)
    width = len(hosts[0]) if hosts else 0
    if len(hosts) < 2 or width < 2 or any(len(host) != width for host in hosts):
        return []
    return hosts
