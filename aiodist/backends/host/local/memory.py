"""Which arrays a local operation reads and writes, what is copied before, and what after.

Peers read blocks of `send`, which may be the user's own array; what comes goes straight into `recv`. Strided
arrays are staged, and written back at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from aiodist.backends.base import Array, Operation, flat
from aiodist.kernels import copy_into, scale
from aiodist.schedules import chunk_bounds
from aiodist.types import Kind

_LINE = 64  # bytes of a cache line: parts of one buffer meet at its edges


@dataclass(slots=True)
class Memory:
    """The memory of one operation on this rank. All arrays have one axis and are contiguous.

    Args:
        send: what each member gets from here; one array where all get the same; none where this rank has
            nothing to give.
        recv: where what each member gives goes; one array where it is reduced to one; none where this rank
            gets nothing.
        longest: elements of the longest part that one member gives another; all ranks agree on it.
        before: (to, from) copies that fill `send`.
        factor: what `scaled` is multiplied by after them, or None.
        scaled: `send` as one array.
        after: (to, from) copies that empty `recv`.
    """

    send: list[Array]
    recv: list[Array]
    longest: int
    before: list[tuple[Array, Array]] = field(default_factory=list)
    factor: float | None = None
    scaled: Array | None = None
    after: list[tuple[Array, Array]] = field(default_factory=list)

    def fill(self) -> None:
        """Do the copies before, and multiply."""
        for to, source in self.before:
            copy_into(to, source)
        if self.factor is not None:
            assert self.scaled is not None
            scale(self.scaled, self.factor)

    def empty(self) -> None:
        """Do the copies after."""
        for to, source in self.after:
            copy_into(to, source)


def memory(operation: Operation, rank: int, size: int) -> Memory:
    """The memory of a collective on member `rank` of `size`."""
    kind = operation.call.kind
    made = Memory([], [], 0)
    if kind in (Kind.all_reduce, Kind.reduce):
        _reducing(made, operation, size)
    elif kind is Kind.broadcast:
        array = operation.target if operation.target is not None else operation.source
        assert isinstance(array, np.ndarray)
        made.longest = array.size
        if rank == operation.call.root:
            made.send = [_read(made, array)]
        else:
            made.recv = [_written(made, array)]
    else:
        _dealing(made, operation, rank, size)
    return made


def part_bounds(count: int, size: int, itemsize: int) -> list[int]:
    """Where each rank's part of a reduction begins, in elements: equal parts of whole cache lines."""
    line = max(1, _LINE // itemsize)
    part = -(-count // (size * line)) * line
    return [min(rank * part, count) for rank in range(size + 1)]


def _reducing(made: Memory, operation: Operation, size: int) -> None:
    source, target = operation.source, operation.target
    assert isinstance(source, np.ndarray)
    bounds = part_bounds(source.size, size, source.itemsize)
    made.longest = bounds[1] - bounds[0]
    if isinstance(target, np.ndarray):
        made.recv = [_written(made, target)]
        if source is target and not made.after:
            made.send = [made.recv[0]]
        elif operation.factor is not None or source is target:
            made.send = [made.recv[0]]
            made.before.append((made.recv[0].reshape(source.shape), source))
    if not made.send:
        made.send = [_copied(made, source) if operation.factor is not None else _read(made, source)]
    made.factor, made.scaled = operation.factor, made.send[0]


def _dealing(made: Memory, operation: Operation, rank: int, size: int) -> None:
    """Parts that differ between members: all_gather, gather, scatter, all_to_all, reduce_scatter."""
    kind, source, target = operation.call.kind, operation.source, operation.target
    whole = kind in (Kind.all_gather, Kind.gather)
    if source is not None:
        if isinstance(source, list):
            made.send = [_read(made, array) for array in source]
        elif whole:
            made.send = [_read(made, source)]
        else:
            sizes = operation.sizes if kind is Kind.scatter else None
            array = _copied(made, source) if operation.factor is not None else _read(made, source)
            made.factor, made.scaled = operation.factor, array
            made.send = _cut(array, sizes, size)
        if operation.factor is not None and isinstance(source, list):
            joined = np.empty(sum(array.size for array in made.send), made.send[0].dtype)
            parts = _cut(joined, [array.size for array in made.send], size)
            made.before += list(zip(parts, made.send, strict=True))
            made.send, made.factor, made.scaled = parts, operation.factor, joined
    if isinstance(target, list):
        made.recv = [_written(made, array) for array in target]
    elif target is not None:
        array = _written(made, target)
        one = kind in (Kind.scatter, Kind.reduce_scatter)
        made.recv = [array] if one else _cut(array, operation.sizes if whole else None, size)
    if operation.sizes is not None and kind is not Kind.all_to_all:
        made.longest = max(operation.sizes)
    elif kind in (Kind.all_to_all, Kind.reduce_scatter):
        made.longest = made.send[0].size
    else:
        made.longest = (made.send[0] if whole else made.recv[0]).size


def _cut(array: Array, sizes: Sequence[int] | None, size: int) -> list[Array]:
    bounds = chunk_bounds(array.size, size) if sizes is None else list(accumulate(sizes, initial=0))
    return [array[low:high] for low, high in pairwise(bounds)]


def _read(made: Memory, array: Array) -> Array:
    """An array to read from: itself if it is contiguous."""
    return flat(array) if array.flags.c_contiguous else _copied(made, array)


def _copied(made: Memory, array: Array) -> Array:
    staging: Array = np.empty(array.shape, array.dtype)
    made.before.append((staging, array))
    return flat(staging)


def _written(made: Memory, array: Array) -> Array:
    """An array to write to: itself if it is contiguous, else one that is copied back."""
    if array.flags.c_contiguous:
        return flat(array)
    staging: Array = np.empty(array.shape, array.dtype)
    made.after.append((array, staging))
    return flat(staging)
