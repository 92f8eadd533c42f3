"""One running operation of a hierarchy: which internal operations it is made of, and in which order.

Large tensors go in pieces, so that one piece crosses the network while the host's ranks work on others. Each
piece is a *strand*: a generator that yields where it waits for what it has started. What has no use but as
a step lies in this process's segment, where the host's ranks read it without a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from aiodist.backends.base import Array, Operation, flat
from aiodist.backends.buffers import Buffers
from aiodist.backends.host.grid import Grid
from aiodist.backends.host.level import Level, carried
from aiodist.backends.inner import InnerOperation
from aiodist.kernels import copy_cost_ns, copy_into, cost_ns, finish
from aiodist.types import NO_ROOT, Call, Kind, ReduceOp

Steps = Generator[None, None, None]

MOST = 16
"""Pieces of one operation."""

CROSSING = 2
"""Pieces of it that are between hosts at a time: messages of a channel take turns, so many would end late."""


def pieces_of(call: Call, size: int) -> int:
    """The number of pieces, of about `size` bytes, that a call is cut into; all ranks agree on it."""
    if call.kind is Kind.all_gather:
        return 1
    return min(MOST, max(1, call.nbytes // size))


@dataclass(slots=True, eq=False)
class Run:
    """One running operation.

    Args:
        grid: the group as a table.
        operation: the user's.
        inner, outer: numbers in the inner group, and in the outer one.
        ended: called when it has ended well.

    Attributes:
        halted: make no further progress.
        after: (to, from) copies, when all strands are over.
        offer, detail: of internal calls: the user's number and call.
    """

    grid: Grid
    operation: Operation
    inner: list[int]
    outer: list[int]
    ended: Callable[[], None]
    halted: bool = False
    after: list[tuple[Array, Array]] = field(default_factory=list)
    offer: int = field(init=False)
    detail: str = field(init=False)
    _open: int = 0
    _crossing: int = 0
    _queue: deque[Strand] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.offer, self.detail = carried(self.operation.call)

    def start(self, steps: Callable[[Strand], Steps]) -> None:
        """Begin a strand."""
        self._open += 1
        Strand(self, steps).go_on()

    def may_cross(self, strand: Strand) -> bool:
        """Whether a strand may go on between hosts now; else it hears `over` when it may. Strands come here
        in the order of their pieces, on all ranks alike."""
        if self._crossing < CROSSING:
            self._crossing += 1
            return True
        self._queue.append(strand)
        return False

    def crossed(self) -> None:
        """Note that a strand has left the network."""
        if self._queue:
            self._queue.popleft().over()
        else:
            self._crossing -= 1

    def strand_over(self) -> None:
        """Note that a strand has ended well; with the last one, the operation has."""
        self._open -= 1
        if self._open:
            return
        if self.after:
            after, self.after = self.after, []
            self.start(partial(_copying, copies=after))
        else:
            self.ended()


class Strand:
    """One strand of a run; see the module.

    Args:
        run: the operation that it is a part of.
        steps: makes the generator.
    """

    __slots__ = ("_pending", "_stepping", "_steps", "run")

    def __init__(self, run: Run, steps: Callable[[Strand], Steps]) -> None:
        self.run = run
        self._pending = 0
        self._stepping = False
        self._steps = steps(self)

    def go_on(self) -> None:
        """Run the strand until it has to wait."""
        if self._stepping:
            return  # what was just started is over already
        self._stepping = True
        try:
            while not self._pending and not self.run.halted:
                next(self._steps)
        except StopIteration:
            self.run.strand_over()
        except Exception as error:
            self.run.grid.channels.failed(error)
        finally:
            self._stepping = False

    def over(self) -> None:
        """Go on: something that was started has ended well."""
        self._pending -= 1
        self.go_on()

    # ── what it starts ───────────────────────────────────────────────────────────────────────────────

    def cross(self, *args: Any, **named: Any) -> Steps:
        """Call `submit` for the outer group, when it is this strand's turn, and wait for the end."""
        if not self.run.may_cross(self):
            self._pending += 1
            yield
        self.submit(self.run.grid.outer, *args, **named)
        yield
        self.run.crossed()

    def submit(
        self,
        level: Level,
        number: int,
        kind: Kind,
        shape: tuple[int, ...],
        source: Array,
        target: Array | list[Array],
        *,
        reduce: ReduceOp | None = None,
        root: int = NO_ROOT,
        factor: float | None = None,
    ) -> None:
        """Start an internal operation. `shape` is what the internal group's ranks agree on."""
        user = self.run.operation.call
        call = Call(kind, number, user.dtype, shape, reduce, root, self.run.offer, self.run.detail)
        self._pending += 1
        work = self.run.operation.work
        level.backend.submit(InnerOperation(call, work, source, target, then=self.over, factor=factor))

    def copy(self, copies: Sequence[tuple[Array, Array]]) -> None:
        """Copy arrays, (to, from)."""

        def copy() -> None:
            for to, source in copies:
                copy_into(to, source)

        self.job(sum(copy_cost_ns(to.nbytes) for to, _ in copies), copy)

    def job(self, cost: float, job: Callable[[], None]) -> None:
        """Do something to our buffers, in the thread if it takes long."""
        self._pending += 1
        if self.run.grid.channels.off_loop(cost, job, self.over):
            self.over()


# ── the kinds ────────────────────────────────────────────────────────────────────────────────────────


def _all_reduce(strand: Strand) -> Steps:
    """Reduce on the host, piece by piece; what comes after it does not wait for the next piece."""
    run = strand.run
    grid, operation = run.grid, run.operation
    call, source, target = operation.call, operation.source, operation.target
    assert isinstance(source, np.ndarray)
    assert isinstance(target, np.ndarray)
    width = len(grid.inner.members)
    if not (source.flags.c_contiguous and target.flags.c_contiguous):
        staged = grid.empty(call.shape, call.dtype)
        strand.copy([(staged, source)])
        yield
        run.after.append((target, staged))
        source = target = staged
    given, got = flat(source), flat(target)
    op = call.reduce
    if op is ReduceOp.AVG:
        op = ReduceOp.SUM
    pieces = len(run.outer)
    for piece, (low, high) in enumerate(pairwise(_bounds(call.count, pieces, width))):
        into, part = got[low:high], given[low:high]
        count = -(-part.size // width)
        if count * width != part.size:
            padded = grid.empty((count * width,), call.dtype)
            padded[part.size :] = 0
            strand.copy([(padded[: part.size], part)])
            yield
            run.after.insert(0, (into, padded[: part.size]))  # where `into` is staged, that comes after
            into = part = padded
        shard = grid.empty((count,), call.dtype)
        number = run.inner[2 * piece]
        strand.submit(
            *(grid.inner, number, Kind.reduce_scatter, (count * width,), part, shard),
            reduce=op,
            factor=operation.factor,
        )
        yield
        run.start(partial(_rest, piece=piece, shard=shard, into=into))


def _rest(strand: Strand, piece: int, shard: Array, into: Array) -> Steps:
    """Reduce between hosts, and hand out."""
    run = strand.run
    grid, op = run.grid, run.operation.call.reduce
    assert op is not None
    plain = ReduceOp.SUM if op is ReduceOp.AVG else run.operation.call.combine
    yield from strand.cross(run.outer[piece], Kind.all_reduce, shard.shape, shard, shard, reduce=plain)
    if op is ReduceOp.AVG:
        size = grid.channels.size
        one_nan = shard.dtype.itemsize == 2  # hosts may narrow to halves by different libraries
        job = partial(finish, shard, op, size, one_nan=one_nan)
        strand.job(cost_ns(shard.nbytes, shard.dtype, op), job)
        yield
    strand.submit(grid.inner, run.inner[2 * piece + 1], Kind.all_gather, shard.shape, shard, into)
    yield


def _broadcast(strand: Strand) -> Steps:
    """Broadcast from the root to its column, and from there on each host."""
    run = strand.run
    grid, call, array = run.grid, run.operation.call, run.operation.target
    is_root = grid.channels.rank == call.root
    made = Buffers(lambda count, dtype: grid.empty((count,), dtype))
    whole = made.in_place(array, array, reads=is_root, writes=not is_root)
    if made.before:
        strand.copy(made.before)
        yield
    run.after += made.after
    for piece, (low, high) in enumerate(pairwise(_bounds(call.count, len(run.inner), 1))):
        run.start(partial(_spread, piece=piece, part=whole[low:high]))


def _spread(strand: Strand, piece: int, part: Array) -> Steps:
    """Broadcast one piece."""
    run = strand.run
    grid = run.grid
    row, column = grid.place[run.operation.call.root]
    if grid.column == column and grid.row != row:
        yield from strand.cross(run.outer[piece], Kind.broadcast, part.shape, part, part, root=row)
    strand.submit(grid.inner, run.inner[piece], Kind.broadcast, part.shape, part, part, root=column)
    if (grid.row, grid.column) == (row, column):  # both at once
        yield from strand.cross(run.outer[piece], Kind.broadcast, part.shape, part, part, root=row)
    yield


def _all_gather(strand: Strand) -> Steps:
    """Gather my column's tensors from the other hosts, then the columns from my host's ranks."""
    run = strand.run
    grid, call = run.grid, run.operation.call
    source, target = run.operation.source, run.operation.target
    assert isinstance(source, np.ndarray)
    assert target is not None
    if isinstance(target, np.ndarray):  # staged arrays have one axis
        target = target.reshape(grid.channels.size, *call.shape)
    shape = (len(grid.hosts), *call.shape)
    mine = grid.empty(shape, call.dtype)
    yield from strand.cross(run.outer[0], Kind.all_gather, call.shape, source, mine)
    columns: list[Array] = []
    for members in zip(*grid.hosts, strict=True):
        step = members[1] - members[0]
        even = step > 0 and all(b - a == step for a, b in pairwise(members))
        if even and isinstance(target, np.ndarray):
            columns.append(target[members[0] : members[-1] + 1 : step])
            continue
        rows = np.empty(shape, call.dtype)
        columns.append(rows)
        for row, member in enumerate(members):
            into = target[member, ...] if isinstance(target, np.ndarray) else target[member]
            run.after.append((into, rows[row, ...].reshape(into.shape)))
    strand.submit(grid.inner, run.inner[0], Kind.all_gather, shape, mine, columns)
    yield


def _copying(strand: Strand, copies: Sequence[tuple[Array, Array]]) -> Steps:
    strand.copy(copies)
    yield


def _bounds(count: int, pieces: int, width: int) -> list[int]:
    """The start of each piece, in elements: all but the last are multiples of `width`."""
    part = -(-count // (pieces * width)) * width
    return [min(piece * part, count) for piece in range(pieces + 1)]


STEPS: dict[Kind, Callable[[Strand], Steps]] = {
    Kind.all_reduce: _all_reduce,
    Kind.broadcast: _broadcast,
    Kind.all_gather: _all_gather,
}
"""The kinds of operation that a hierarchy carries out; the rest goes over channels."""
