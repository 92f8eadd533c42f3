"""The memory of a collective that runs by a schedule: one buffer in chunks, sent and received in place.

Where a rank's tensor has a part for each member it is that buffer, whose chunks are the parts. all_to_all has
two: what it sends is never overwritten by what comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aiodist.backends.base import Array, Given, Operation
from aiodist.backends.buffers import Buffers, bounds_of
from aiodist.backends.schedules.steps import Schedule
from aiodist.base.operations import ROLES, Parts, origins
from aiodist.base.types import ReduceOp


@dataclass(slots=True, kw_only=True)
class Chunks(Buffers):
    """The memory of one collective on this rank. Chunks of `source` are sent, those of `target` received; but
    for all_to_all they are one array.

    Attributes:
        target_sizes: elements of each chunk of `target`, where they differ; None: divided evenly.
        source_sizes: likewise, of `source`.
    """

    source: Array
    target: Array
    target_sizes: Sequence[int] | None = None
    source_sizes: Sequence[int] | None = None


def chunks(operation: Operation, rank: int, size: int, schedule: Schedule) -> Chunks:
    """The memory of a collective on member `rank` of `size`, which runs by `schedule`."""
    call, source, target = operation.call, operation.source, operation.target
    roles = ROLES[call.kind]
    if roles.one_tensor:
        source = target = source if target is None else target
    made = Chunks(np.empty, factor=operation.factor, source=_NOTHING, target=_NOTHING)
    gives, gets = roles.gives(rank, call.root), roles.gets(rank, call.root)
    if roles.cut:
        _cut(made, operation, rank, size)
    elif isinstance(target, np.ndarray):
        made.source = made.target = made.in_place(source, target, gives, gets)
        made.result = made.target
    elif source is not None:
        # reduce, not the root: partial results pass through memory of our own, unless this rank only sends.
        own = schedule.writes or operation.factor is not None
        made.source = made.target = made.read(source, own)
    if not roles.reduces or not gets:
        made.result = None
        return made
    # Ranks that average the same sums each for itself may narrow to halves by different libraries, too.
    averages = call.reduce is ReduceOp.AVG
    apart = schedule.repeats or (averages and call.dtype.itemsize == 2)
    made.divisor = len(origins(call.kind, rank, size, call.root)[0]) if averages else 0
    made.one_nan = apart and call.dtype.kind not in "biu"
    return made


_NOTHING: Array = np.empty(0, np.uint8)


def _cut(made: Chunks, operation: Operation, rank: int, size: int) -> None:
    """The memory of a collective whose tensors are cut into a part for each member."""
    source, target, roles = operation.source, operation.target, ROLES[operation.call.kind]
    if roles.source is Parts.ONE:  # the parts of all come together in the target
        made.source_sizes = made.target_sizes = sizes = operation.target_sizes
        made.target = _room(source, sizes, size) if target is None else made.write(target)
        made.source = made.target
        mine = _part(made.target, sizes, rank, size)
        assert isinstance(source, np.ndarray)
        made.before.append((mine.reshape(source.shape), source))
    elif roles.target is Parts.ONE:  # the parts for all lie in the source
        made.source_sizes = made.target_sizes = sizes = operation.source_sizes
        written = roles.reduces or made.factor is not None
        made.source = _room(target, sizes, size) if source is None else made.read(source, own=written)
        made.target = made.source
        made.result = mine = _part(made.source, sizes, rank, size)
        assert isinstance(target, np.ndarray)
        made.after.append((target, mine.reshape(target.shape)))
    else:
        assert source is not None
        assert target is not None
        made.source_sizes, made.target_sizes = operation.source_sizes, operation.target_sizes
        made.target, made.source = made.write(target), made.read(source)
        kept = _part(made.source, made.source_sizes, rank, size)
        made.before.append((_part(made.target, made.target_sizes, rank, size), kept))


def _part(array: Array, sizes: Sequence[int] | None, rank: int, size: int) -> Array:
    bounds = bounds_of(array.size, sizes, size)
    return array[bounds[rank] : bounds[rank + 1]]


def _room(part: Given, sizes: Sequence[int] | None, size: int) -> Array:
    """Memory of our own for all parts, where this rank has no tensor of them: they pass through. Pages that
    nobody touches cost nothing."""
    assert isinstance(part, np.ndarray)
    return np.empty(part.size * size if sizes is None else sum(sizes), part.dtype)
