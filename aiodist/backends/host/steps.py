"""The operations of a hierarchy, step by step: which internal operations each is made of.

    all_reduce      inner reduce_scatter ─▶ outer all_reduce of the shard ─▶ inner all_gather
    reduce          inner reduce_scatter ─▶ outer reduce of the shard to the root's host ─▶ inner gather there
    reduce_scatter  inner, a part for each column ─▶ outer
    broadcast       outer, in the root's column ─▶ inner, from that column
    scatter         inner, on the root's host, a part for each column ─▶ outer
    gather          outer, to the root's host ─▶ inner there
    all_gather      outer ─▶ inner
    all_to_all      inner, what is for each column ─▶ outer

What is cut for all members, or joined of all, is grouped by columns: where the members of a column lie
evenly, that is a view; else it is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from aiodist.backends.arrays.kernels import cost_ns, finish
from aiodist.backends.base import Array, Given, flat
from aiodist.backends.buffers import Buffers
from aiodist.backends.host.grid import Grid
from aiodist.backends.host.stages import Steps, Strand
from aiodist.base.types import NO_ROOT, Call, Kind, ReduceOp

MOST = 16
"""Pieces of one operation."""

APART = 32 << 10
"""Bytes of the part for each member from which on an all_to_all does not go by hosts: fewer messages save
less by then than two more copies cost."""

_IN_PIECES = (Kind.all_reduce, Kind.reduce, Kind.broadcast)
_AT_ROOT = (Kind.gather, Kind.scatter)  # inner operations on the root's host alone


def goes_by_hosts(kind: Kind, nbytes: int, size: int, least: int) -> bool:
    """Whether an operation is worked on in each host first; all ranks agree on it.

    Args:
        kind: of it.
        nbytes: of its buffer, as all ranks agree.
        size: of the group.
        least: bytes from which on that is done.
    """
    return kind in STEPS and nbytes >= least and (kind is not Kind.all_to_all or nbytes < size * APART)


def pieces_of(call: Call, size: int) -> int:
    """The number of pieces, of about `size` bytes, that a call is cut into; all ranks agree on it."""
    return pieces(call.kind, call.nbytes, size)


def pieces(kind: Kind, nbytes: int, size: int) -> int:
    """The number of pieces, of about `size` bytes, that a kind of call on so many bytes is cut into."""
    return min(MOST, max(1, nbytes // size)) if kind in _IN_PIECES else 1


def parts_of(call: Call, grid: Grid) -> tuple[int, int]:
    """The number of operations in this rank's inner and outer group that a piece of a call is made of."""
    kind, outer = call.kind, 1
    row, column = grid.place.get(call.root, (grid.row, grid.column))
    inner = 0 if kind in _AT_ROOT and row != grid.row else 1
    if kind is Kind.all_reduce or (kind is Kind.reduce and row == grid.row):
        inner = 2
    if kind is Kind.broadcast and column != grid.column:
        outer = 0
    return inner, outer


# ── what reduces one tensor ──────────────────────────────────────────────────────────────────────────


def _reduce(strand: Strand) -> Steps:
    """Reduce on the host, piece by piece; what comes after it does not wait for the next piece. All ranks get
    the result, or the root."""
    run = strand.run
    grid, operation = run.grid, run.operation
    call, source, target = operation.call, operation.source, operation.target
    assert isinstance(source, np.ndarray)
    gets = call.kind is Kind.all_reduce or grid.channels.rank == call.root
    got = None
    if gets:
        assert isinstance(target, np.ndarray)
        if target.flags.c_contiguous:
            got = flat(target)
        else:
            staged = grid.empty(call.shape, call.dtype)
            run.after.append((target, staged))
            got = flat(staged)
    if source.flags.c_contiguous:
        given = flat(source)
    else:
        given = flat(grid.empty(call.shape, call.dtype)) if got is None or source is not target else got
        strand.copy([(given.reshape(call.shape), source)])
        yield
    width = len(grid.inner.members)
    op = _combining(call)
    for piece, (low, high) in enumerate(pairwise(_bounds(call.count, len(run.outer), width))):
        into, part = None if got is None else got[low:high], given[low:high]
        count = -(-part.size // width)
        if count * width != part.size:
            padded = grid.empty((count * width,), call.dtype)
            padded[part.size :] = 0
            strand.copy([(padded[: part.size], part)])
            yield
            if into is not None:
                run.after.insert(0, (into, padded[: part.size]))  # where `into` is staged, that comes after
                into = padded
            part = padded
        shard = grid.empty((count,), call.dtype)
        number = run.inner[piece * len(run.inner) // len(run.outer)]
        shape = (count * width,)
        strand.submit(
            *(grid.inner, number, Kind.reduce_scatter, shape, part, shard), reduce=op, factor=operation.factor
        )
        yield
        finish = _finish_on_all if call.kind is Kind.all_reduce else _finish_at_root
        run.start(partial(finish, piece=piece, shard=shard, into=into))


def _finish_on_all(strand: Strand, piece: int, shard: Array, into: Array | None) -> Steps:
    """Reduce between hosts, and hand out."""
    run = strand.run
    call = run.operation.call
    op = _combining(call, between=True)
    yield from strand.cross(run.outer[piece], Kind.all_reduce, shard.shape, shard, shard, reduce=op)
    yield from _divided(strand, shard)
    strand.submit(run.grid.inner, run.inner[2 * piece + 1], Kind.all_gather, shard.shape, shard, into)
    yield


def _finish_at_root(strand: Strand, piece: int, shard: Array, into: Array | None) -> Steps:
    """Reduce to the root's host, and gather there."""
    run = strand.run
    grid, call = run.grid, run.operation.call
    row, column = grid.place[call.root]
    op, result = _combining(call, between=True), shard if grid.row == row else None
    yield from strand.cross(run.outer[piece], Kind.reduce, shard.shape, shard, result, reduce=op, root=row)
    if result is not None:
        yield from _divided(strand, shard)
        number = run.inner[2 * piece + 1]
        strand.submit(grid.inner, number, Kind.gather, shard.shape, shard, into, root=column)
        yield


def _combining(call: Call, between: bool = False) -> ReduceOp | None:
    """The op of internal reductions: AVG divides at the end, and factors count once, on the host."""
    if call.reduce is ReduceOp.AVG:
        return ReduceOp.SUM
    return call.combine if between else call.reduce


def _divided(strand: Strand, array: Array) -> Steps:
    """Divide what was summed, where that is asked for."""
    op, size = strand.run.operation.call.reduce, strand.run.grid.channels.size
    if op is ReduceOp.AVG:
        one_nan = array.dtype.itemsize == 2  # hosts may narrow to halves by different libraries
        strand.job(cost_ns(array.nbytes, array.dtype, op), partial(finish, array, op, size, one_nan=one_nan))
        yield


# ── what the root has ────────────────────────────────────────────────────────────────────────────────


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


def _scatter(strand: Strand) -> Steps:
    """Deal out to the ranks of the root's host what is for their columns; from there to the other hosts."""
    run = strand.run
    grid, call, target = run.grid, run.operation.call, run.operation.target
    row, column = grid.place[call.root]
    mine = None
    if grid.row == row:
        columns = None
        if grid.column == column:
            columns, copies = _lines(_columns(grid), _each(run.operation.source, grid))
            if copies:
                strand.copy(copies)
                yield
        mine = grid.empty((len(grid.hosts), *call.shape), call.dtype)
        strand.submit(grid.inner, run.inner[0], Kind.scatter, mine.shape, columns, mine, root=column)
        yield
    yield from strand.cross(run.outer[0], Kind.scatter, call.shape, mine, target, root=row)


# ── what has a part of each, or for each ─────────────────────────────────────────────────────────────


def _gather(strand: Strand) -> Steps:
    """Gather my column's tensors from the other hosts, then the columns from my host's ranks: for all, or for
    the root alone."""
    run = strand.run
    grid, call = run.grid, run.operation.call
    everybody = call.kind is Kind.all_gather
    row, column = (NO_ROOT, NO_ROOT) if everybody else grid.place[call.root]
    shape = (len(grid.hosts), *call.shape)
    mine = grid.empty(shape, call.dtype) if everybody or grid.row == row else None
    yield from strand.cross(run.outer[0], call.kind, call.shape, run.operation.source, mine, root=row)
    if mine is None:
        return
    columns = None
    if everybody or grid.column == column:
        columns, copies = _lines(_columns(grid), _each(run.operation.target, grid))
        run.after += [(into, rows) for rows, into in copies]
    strand.submit(grid.inner, run.inner[0], call.kind, shape, mine, columns, root=column)
    yield


def _reduce_scatter(strand: Strand) -> Steps:
    """Reduce on the host what is for each column, and then between the hosts of a column what is for each."""
    run = strand.run
    grid, operation = run.grid, run.operation
    call, target = operation.call, operation.target
    assert isinstance(target, np.ndarray)
    columns, copies = _lines(_columns(grid), _each(operation.source, grid))
    if copies:
        strand.copy(copies)
        yield
    mine = grid.empty(columns[0].shape, call.dtype)
    shape = (mine.size * len(columns),)
    strand.submit(
        *(grid.inner, run.inner[0], Kind.reduce_scatter, shape, columns, mine),
        reduce=_combining(call),
        factor=operation.factor,
    )
    yield
    out = target
    if not target.flags.c_contiguous:
        out = grid.empty(target.shape, call.dtype)
        run.after.append((target, out))
    op = _combining(call, between=True)
    yield from strand.cross(run.outer[0], Kind.reduce_scatter, (mine.size,), mine, out, reduce=op)
    yield from _divided(strand, flat(out))


def _all_to_all(strand: Strand) -> Steps:
    """Exchange on the host what is for each column, and then between the hosts of a column."""
    run = strand.run
    grid, operation = run.grid, run.operation
    call = operation.call
    columns, copies = _lines(_columns(grid), _each(operation.source, grid))
    if copies:
        strand.copy(copies)
        yield
    one = columns[0][0, ...].shape
    hosts, width = len(grid.hosts), len(grid.inner.members)
    # By the row that it is for, and by who of this host gave it.
    mine = grid.empty((hosts, width, *one), call.dtype)
    from_each = [mine[:, column] for column in range(width)]
    count = mine.size
    strand.submit(grid.inner, run.inner[0], Kind.all_to_all, (count,), columns, from_each)
    yield
    rows, copies = _lines(grid.hosts, _each(operation.target, grid))
    run.after += [(into, staged) for staged, into in copies]
    yield from strand.cross(run.outer[0], Kind.all_to_all, (count,), mine, rows)


def _columns(grid: Grid) -> list[tuple[int, ...]]:
    """The members of each column, host by host."""
    return list(zip(*grid.hosts, strict=True))


def _each(given: Given, grid: Grid) -> Array | list[Array]:
    """The parts of all members: a list, or an array whose first axis counts them, sharing its memory."""
    assert given is not None
    if isinstance(given, list):
        return given
    size = grid.channels.size
    return given.reshape(size, given.shape[0] // size, *given.shape[1:])  # to split an axis copies nothing


def _lines(
    lines: Sequence[Sequence[int]], parts: Array | list[Array]
) -> tuple[list[Array], list[tuple[Array, Array]]]:
    """The parts of some members, together, for several lots of them.

    Returns:
        An array for each lot, with an axis more. Where that is no view, it is new, and (a part of it, that
        member's own part) says what is to be copied.
    """
    arrays: list[Array] = []
    copies: list[tuple[Array, Array]] = []
    for members in lines:
        step = members[1] - members[0]
        even = step > 0 and all(b - a == step for a, b in pairwise(members))
        if even and isinstance(parts, np.ndarray):
            arrays.append(parts[members[0] : members[-1] + 1 : step])
            continue
        own = [parts[member, ...] if isinstance(parts, np.ndarray) else parts[member] for member in members]
        rows = np.empty((len(members), *own[0].shape), own[0].dtype)
        arrays.append(rows)
        copies += [(rows[at, ...].reshape(part.shape), part) for at, part in enumerate(own)]
    return arrays, copies


def _bounds(count: int, pieces: int, width: int) -> list[int]:
    """The start of each piece, in elements: all but the last are multiples of `width`."""
    part = -(-count // (pieces * width)) * width
    return [min(piece * part, count) for piece in range(pieces + 1)]


STEPS: dict[Kind, Callable[[Strand], Steps]] = {
    Kind.all_reduce: _reduce,
    Kind.reduce: _reduce,
    Kind.reduce_scatter: _reduce_scatter,
    Kind.broadcast: _broadcast,
    Kind.scatter: _scatter,
    Kind.gather: _gather,
    Kind.all_gather: _gather,
    Kind.all_to_all: _all_to_all,
}
"""The kinds of operation that a hierarchy carries out; the rest goes over channels."""
