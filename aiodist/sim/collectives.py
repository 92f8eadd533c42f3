"""How long a collective takes: by which algorithm it goes, as the host engine chooses, and its cost. Pure.

On one host through memory; between hosts by its schedule; where several hosts have several ranks each, from a
size on, by the hierarchy, in pieces, of which two are between hosts at a time (`backends.host.steps`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aiodist.backends.host.grid import table_of
from aiodist.backends.host.hierarchy import piece_size
from aiodist.backends.host.stages import CROSSING
from aiodist.backends.host.steps import goes_by_hosts, pieces
from aiodist.backends.schedules.select import UNKNOWN, algorithm
from aiodist.base.environment.thresholds import DEFAULTS, Thresholds
from aiodist.base.operations import ROLES, Parts
from aiodist.base.types import Kind
from aiodist.sim.cost import Ends, Fabric, Wires, parts
from aiodist.sim.network import Floats, Ints, table
from aiodist.sim.rounds import PLAYED, plan
from aiodist.transport.base import EAGER_MESSAGE

REMEMBERED = 1024  # results of operations to which all come alike


@dataclass(frozen=True, slots=True)
class Wanted:
    """A collective, as far as its time depends on it.

    Args:
        kind: which.
        nbytes: of its buffer, as all ranks agree (`schedules.select`); `UNKNOWN`: they do not.
        itemsize: bytes of an element.
        root: group rank.
        chunks: bytes of the part of each member, where they differ; of each pair's, by sender and receiver.
    """

    kind: Kind
    nbytes: int
    itemsize: int = 1
    root: int = -1
    chunks: Floats | None = None


class Collectives:
    """The collectives of one group.

    Args:
        fabric: the network.
        members: global rank of each.
        limits: the host engine's thresholds.
        played: ranks up to which schedules are played step by step.
    """

    def __init__(
        self, fabric: Fabric, members: Sequence[int], limits: Thresholds = DEFAULTS, played: int = PLAYED
    ) -> None:
        self.fabric = fabric
        self.ranks: Ints = np.array(members, np.int64)
        self.size = len(members)
        hosts = table(fabric.network, members)
        self._grid = table_of(hosts)
        self._alone = len(hosts) == 1
        self._limits = limits
        self._played = played
        self._known: dict[object, tuple[Floats, Wires, float]] = {}
        self._plain = not fabric.credit.any()

    def by(self, wanted: Wanted) -> str:
        """How it is carried out, in words."""
        if self.size == 1:
            return "alone"
        if self._alone:
            return "memory"
        if not self._goes_by_hosts(wanted):
            return algorithm(wanted.kind, self.size, wanted.nbytes)
        _, outer, piece = self._outer(wanted)
        return f"hosts, {algorithm(outer, len(self._grid), piece)}"

    def ends(self, wanted: Wanted, at: Floats, commit: bool = True) -> Ends:
        """How it ends.

        Args:
            wanted: the collective.
            at: when each member came; infinite: it has not.
            commit: all have come, and links are busy with it from now on.
        """
        came = at[np.isfinite(at)]
        begun = float(came.max())
        key = None
        if commit and self._plain and not self.fabric.network.cores and wanted.chunks is None:
            shift = at - begun
            key = (wanted.kind, wanted.nbytes, wanted.itemsize, wanted.root, shift.round(12).tobytes())
            known = self._known.get(key)
            if known is not None:
                after, wires, first = known
                later = wires.copy()
                for way in (later.up, later.down):
                    way.free = np.where(way.work > 0, way.free + begun - first, way.free)
                return self.fabric.contended(begun, later, after + begun, True)
        wires = self.fabric.begin(begun if commit else float(came.min()))
        after = self._alone_ends(wanted, at, wires)
        if key is not None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = (after - begun, wires, begun)
        return self.fabric.contended(begun, wires, after, commit)

    def _alone_ends(self, wanted: Wanted, at: Floats, wires: Wires) -> Floats:
        if self.size == 1:
            return at
        if self._alone:
            return self._in_memory(wanted.kind, self.size, wanted.nbytes, at, wanted.root, wires)
        if self._goes_by_hosts(wanted):
            return self._by_hosts(wanted, at, wires)
        name = algorithm(wanted.kind, self.size, wanted.nbytes)
        one = plan(wanted.kind, name, self.size, wanted.root, self._played)
        chunks = wanted.chunks
        if chunks is None and one.two_buffers:
            chunks = np.array([wanted.nbytes / self.size])
        elif chunks is None:
            chunks = parts(wanted.nbytes, one.chunks, wanted.itemsize)
        before, after = self._copies(wanted.kind, self.size, wanted.nbytes, self.size)
        return self.fabric.run(one, chunks, self.ranks, at + before, wires) + after

    def _copies(self, kind: Kind, size: int, nbytes: float, ranks: int) -> tuple[float, float]:
        """Seconds that members of a group of `size` copy before an operation over channels, and after it.

        Args:
            nbytes: of its buffer.
            ranks: that do so at the same time.
        """
        before, after = _COPIED[kind](size) if kind in _COPIED else (0.0, 0.0)
        each = max(nbytes, 0) * self.fabric.local_byte * self.fabric.network.turns(ranks)
        return before * each, after * each

    # ── on one host ──────────────────────────────────────────────────────────────────────────────────

    def _in_memory(
        self, kind: Kind, width: int, nbytes: float, at: Floats, root: int, wires: Wires, hosts: int = 1
    ) -> Floats:
        """The ends of an operation between the ranks of a host; of several hosts at once, whose members lie
        in the rows of `at`.

        Args:
            nbytes: of its buffer; `root`: its place on the host.
        """
        fabric, rows = self.fabric, at.reshape(-1, width)
        if width == 1:
            return at
        cost = self._memory_cost(kind, width, nbytes)
        roles = ROLES[kind]
        late = rows.max(axis=1, keepdims=True)
        if not roles.rooted:
            ends = np.broadcast_to(late + cost, rows.shape)
        else:
            one = rows[:, [root]]
            if roles.root_gives:
                ends = np.maximum(rows, one) + cost
                ends[:, root] = one[:, 0] + fabric.local if nbytes <= EAGER_MESSAGE else late[:, 0] + cost
            else:
                ends = rows + fabric.local if nbytes <= EAGER_MESSAGE else np.maximum(rows, one) + cost
                ends[:, root] = late[:, 0] + cost
        if fabric.network.cores:
            labour = width * len(rows) * cost / fabric.network.cores
            wires.cores = max(wires.cores, float(late[np.isfinite(late)].min(initial=math.inf))) + labour
            wires.labour += labour
            ends = np.maximum(ends, wires.cores)
        found: Floats = np.array(ends).reshape(at.shape)
        return found

    def _memory_cost(self, kind: Kind, width: int, nbytes: float) -> float:
        """Seconds of an operation between the ranks of a host, if they come together."""
        nbytes_moved = moved(kind, width) * max(nbytes, 0)
        return self.fabric.local * math.ceil(math.log2(width)) + nbytes_moved * self.fabric.local_byte

    # ── by hosts ─────────────────────────────────────────────────────────────────────────────────────

    def _goes_by_hosts(self, wanted: Wanted) -> bool:
        least = max(self._limits.hierarchy, 1)
        even = bool(self._grid) and wanted.chunks is None
        return even and goes_by_hosts(wanted.kind, wanted.nbytes, self.size, least)

    def _outer(self, wanted: Wanted) -> tuple[int, Kind, int]:
        """The number of pieces, what happens between hosts, and the bytes of its buffer for one piece."""
        kind, width, hosts = wanted.kind, len(self._grid[0]), len(self._grid)
        roles = ROLES[kind]
        agreed = wanted.nbytes // self.size if roles.agrees_on_part else wanted.nbytes
        count = pieces(kind, agreed, piece_size(self._limits))
        piece = wanted.nbytes // count
        if kind in (
            Kind.all_reduce,
            Kind.reduce,
            Kind.reduce_scatter,
            Kind.all_gather,
            Kind.gather,
            Kind.scatter,
        ):
            piece = piece // width  # of a column
        assert hosts
        return count, kind, piece

    def _by_hosts(self, wanted: Wanted, at: Floats, wires: Wires) -> Floats:
        kind, root = wanted.kind, wanted.root
        hosts, width = len(self._grid), len(self._grid[0])
        order = np.array(self._grid, np.int64)  # group rank by row and column
        row, column = (-1, -1) if root < 0 else tuple(int(found[0]) for found in np.where(order == root))
        count, _, piece = self._outer(wanted)
        whole = wanted.nbytes / count
        come = at[order]
        here = sum(self._memory_cost(one, width, whole) for one in _ON_HOSTS.get(kind, ()))

        def inner(what: Kind, nbytes: float, when: Floats, of: int = -1) -> Floats:
            return self._in_memory(what, width, nbytes, when, of, wires)

        def outer(when: Floats) -> Floats:
            return self._between(kind, piece, wanted.itemsize, row, column, when, wires, count, here)

        if kind in (Kind.all_reduce, Kind.reduce):
            there = outer(inner(Kind.reduce_scatter, whole, come))
            last = Kind.all_gather if kind is Kind.all_reduce else Kind.gather
            ends = inner(last, whole, there, column)
            if kind is Kind.reduce:
                ends = np.where(np.arange(hosts)[:, None] == row, ends, there)
        elif kind is Kind.broadcast:
            ends = inner(Kind.broadcast, whole, outer(come), column)
        elif kind in (Kind.all_gather, Kind.gather):
            there = outer(come)
            ends = inner(kind, wanted.nbytes, there, column)
            if kind is Kind.gather:
                ends = np.where(np.arange(hosts)[:, None] == row, ends, there)
        elif kind is Kind.scatter:
            begun = come.copy()
            begun[row] = inner(kind, wanted.nbytes, come, column)[row]
            ends = outer(begun)
        else:  # all_to_all, reduce_scatter
            ends = outer(inner(kind, wanted.nbytes, come))
        found = at.copy()
        found[order] = ends
        return found

    def _between(
        self,
        kind: Kind,
        nbytes: int,
        itemsize: int,
        row: int,
        column: int,
        at: Floats,
        wires: Wires,
        count: int,
        here: float,
    ) -> Floats:
        """All pieces between hosts: the columns side by side, each by the schedule of its size.

        Args:
            here: seconds of a rank's work on its host for one piece.
        """
        hosts, width = at.shape
        name = algorithm(kind, hosts, nbytes)
        one = plan(kind, name, hosts, row, self._played)
        chunks = np.array([nbytes / hosts]) if one.two_buffers else parts(nbytes, one.chunks, itemsize)
        columns = np.array([column]) if kind is Kind.broadcast else np.arange(width)
        order = np.array(self._grid, np.int64)[:, columns]
        wide = one.wide(columns.size)
        ranks, flat = self.ranks[order.reshape(-1)], at[:, columns].reshape(-1)
        before = wires.copy()
        ready, after = self._copies(kind, hosts, nbytes, flat.size)
        first = self.fabric.run(wide, chunks, ranks, flat + ready, wires) + after
        ends = at.copy()
        if count > 1:
            # Two pieces are on their way at a time: their latencies overlap, their bytes do not.
            done = np.isfinite(first)
            alone = float((first[done] - flat[done]).max(initial=0.0))
            work = max(
                float((wires.up.work - before.up.work).max()),
                float((wires.down.work - before.down.work).max()),
            )
            # Meanwhile hosts work on the pieces before and after: one is through as often as the slower of
            # the two allows, and where all share cores, these do the work of all.
            if self.fabric.network.cores:
                more = at.size * here / self.fabric.network.cores
                wires.cores += more
                wires.labour += more
            work = max(work, wires.labour - before.labour, here)
            each = max(alone / CROSSING, work)
            first = first + (count - 1) * each
            wires.go_on(before, each, count - 1)
        ends[:, columns] = first.reshape(hosts, -1)
        return ends


_COPIED: dict[Kind, Callable[[int], tuple[float, float]]] = {
    Kind.all_gather: lambda size: (1 / size, 0.0),
    Kind.reduce_scatter: lambda size: (2.0, 1 / size),  # to memory that is new, and that the system clears
    Kind.all_to_all: lambda size: (1 / size, 0.0),
}
"""Buffers of bytes that a rank copies before an operation over channels, and after it (`host.chunks`)."""

_ON_HOSTS = {
    Kind.all_reduce: (Kind.reduce_scatter, Kind.all_gather),
    Kind.reduce: (Kind.reduce_scatter, Kind.gather),
    Kind.broadcast: (Kind.broadcast,),
}
"""What a piece is on its host, of what goes in pieces."""


def moved(kind: Kind, width: int) -> float:
    """Buffers of bytes that the busiest of `width` ranks of a host moves through memory.

    What others read is copied into memory that all map, and from there everybody takes or sums what it gets;
    that is what `benchmarks.ranks.moves` counts, too.
    """
    roles, others = ROLES[kind], 1 - 1 / width
    if roles.source is Parts.NONE:
        return 0.0
    if roles.reduces:  # each sums its share of what others gave; a whole result is put together of the shares
        return 2 * others + (roles.source is Parts.ONE)
    if roles.rooted:  # the root gives, or gets, all of it
        return 1.0
    return 1.0 + (1 / width if roles.source is Parts.ONE else others)


assert UNKNOWN < 0
