"""Which buffer an operation works on, what is copied into it before and out of it after.

A schedule works on one contiguous buffer (all_to_all on two). Where the user's array is contiguous it *is*
that buffer; a strided one is staged, and written back when the operation has ended well (gloo and NCCL
silently misread strided tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from aiodist.backends.base import Array, Operation, flat
from aiodist.backends.host.offload import copy_cost_ns
from aiodist.kernels import copy_into, cost_ns, finish, scale
from aiodist.schedules import Schedule, chunk_bounds
from aiodist.types import Kind, ReduceOp


@dataclass(slots=True)
class Job:
    """The memory of one operation on this rank.

    Args:
        buffer: contiguous, one axis; what the schedule's chunks divide.
        bounds: where each chunk begins, in elements, where chunks differ in size; None divides evenly.
        sent: the buffer that is sent from, where it is another one (all_to_all), with `sent_bounds`.
        before: (to, from) copies that fill it.
        factor: what the buffer is multiplied by once it is filled (PREMUL_SUM), or None.
        after: (to, from) copies that empty it.
        result: part of the buffer that holds this rank's result before the last touch, where there is one to
            give: the division of AVG, or one NaN for all.
        op: the reduction.
        size: ranks of the group.
        one_nan: ranks computed the result each for itself, and NaNs may differ in their bits (law 3).
    """

    buffer: Array
    bounds: list[int] | None = None
    sent: Array | None = None
    sent_bounds: list[int] | None = None
    before: list[tuple[Array, Array]] = field(default_factory=list)
    factor: float | None = None
    after: list[tuple[Array, Array]] = field(default_factory=list)
    result: Array | None = None
    op: ReduceOp = ReduceOp.SUM
    size: int = 1
    one_nan: bool = False

    def fill(self) -> None:
        """Do the copies before, and multiply."""
        for to, source in self.before:
            copy_into(to, source)
        if self.factor is not None:
            scale(self.buffer, self.factor)

    def empty(self) -> None:
        """Give the result its last touch, do the copies after."""
        if self.result is not None:
            finish(self.result, self.op, self.size, one_nan=self.one_nan)
        for to, source in self.after:
            copy_into(to, source)

    def fill_ns(self) -> float:
        """What `fill` costs, roughly."""
        cost = sum(copy_cost_ns(to.nbytes) for to, _ in self.before)
        if self.factor is not None:
            cost += cost_ns(self.buffer.nbytes, self.buffer.dtype, ReduceOp.SUM)
        return cost

    def empty_ns(self) -> float:
        """What `empty` costs, roughly."""
        cost = sum(copy_cost_ns(to.nbytes) for to, _ in self.after)
        if self.result is not None:
            cost += cost_ns(self.result.nbytes, self.result.dtype, ReduceOp.SUM)
        return cost


def prepare(operation: Operation, rank: int, size: int, schedule: Schedule) -> Job:
    """The job of a collective on rank `rank` of `size` that runs by `schedule`."""
    return _PREPARE[operation.call.kind](operation, rank, size, schedule)


def prepare_message(operation: Operation) -> Job:
    """The job of a send or a receive."""
    source = operation.source
    if isinstance(source, np.ndarray):
        return Job(flat(source)) if source.flags.c_contiguous else _copy(source)
    assert isinstance(operation.target, np.ndarray)
    return _staged(operation.target, None)


# ── each collective ──────────────────────────────────────────────────────────────────────────────────


def _barrier(operation: Operation, rank: int, size: int, schedule: Schedule) -> Job:
    return Job(np.empty(0, np.uint8))


def _broadcast(operation: Operation, rank: int, size: int, schedule: Schedule) -> Job:
    target = operation.target
    assert isinstance(target, np.ndarray)
    if rank != operation.call.root:
        return _staged(target, None)
    job = _staged(target, target)
    job.after.clear()  # the root's tensor is what it was
    return job


def _all_reduce(operation: Operation, rank: int, size: int, schedule: Schedule) -> Job:
    assert isinstance(operation.source, np.ndarray)
    assert isinstance(operation.target, np.ndarray)
    job = _staged(operation.target, operation.source)
    return _reducing(job, job.buffer, operation, size, schedule)


def _reduce(operation: Operation, rank: int, size: int, schedule: Schedule) -> Job:
    source, target = operation.source, operation.target
    assert isinstance(source, np.ndarray)
    if isinstance(target, np.ndarray):
        job = _staged(target, source)
        return _reducing(job, job.buffer, operation, size, schedule)
    # Not the root: partial results pass through memory of our own, unless this rank only sends.
    written = schedule.writes or operation.factor is not None
    job = _copy(source) if written or not source.flags.c_contiguous else Job(flat(source))
    return _reducing(job, None, operation, size, schedule)


def _reduce_scatter(operation: Operation, rank: int, size: int, schedule: Schedule) -> Job:
    source, target = operation.source, operation.target
    assert isinstance(target, np.ndarray)
    assert source is not None
    job = _copy(source) if isinstance(source, np.ndarray) else _joined(source)
    bounds = chunk_bounds(job.buffer.size, size)
    mine = job.buffer[bounds[rank] : bounds[rank + 1]]
    job.after.append((target, mine.reshape(target.shape)))
    return _reducing(job, mine, operation, size, schedule)


def _gather(operation: Operation, rank: int, size: int, schedule: Schedule) -> Job:
    """all_gather, and gather: there, only the root has a target."""
    source, target = operation.source, operation.target
    assert isinstance(source, np.ndarray)
    if isinstance(target, np.ndarray):
        job = _staged(target, None)
    elif target is not None:
        job = _dealt(target)
    else:  # not the root: what passes through here takes memory of our own; untouched pages cost nothing
        total = source.size * size if operation.sizes is None else sum(operation.sizes)
        job = Job(np.empty(total, source.dtype))
    job.bounds = _bounds(operation.sizes)
    bounds = job.bounds or chunk_bounds(job.buffer.size, size)
    mine = job.buffer[bounds[rank] : bounds[rank + 1]]
    job.before.append((mine.reshape(source.shape), source))
    return job


def _scatter(operation: Operation, rank: int, size: int, schedule: Schedule) -> Job:
    source, target = operation.source, operation.target
    assert isinstance(target, np.ndarray)
    if isinstance(source, np.ndarray):
        job = Job(flat(source)) if source.flags.c_contiguous else _copy(source)
    elif source is not None:
        job = _joined(source)
    else:
        total = target.size * size if operation.sizes is None else sum(operation.sizes)
        job = Job(np.empty(total, target.dtype))
    job.bounds = _bounds(operation.sizes)
    bounds = job.bounds or chunk_bounds(job.buffer.size, size)
    mine = job.buffer[bounds[rank] : bounds[rank + 1]]
    job.after.append((target, mine.reshape(target.shape)))
    return job


def _all_to_all(operation: Operation, rank: int, size: int, schedule: Schedule) -> Job:
    source, target = operation.source, operation.target
    assert source is not None
    assert target is not None
    job = _staged(target, None) if isinstance(target, np.ndarray) else _dealt(target)
    out = _copy(source) if isinstance(source, np.ndarray) else _joined(source)
    if isinstance(source, np.ndarray) and source.flags.c_contiguous:
        out = Job(flat(source))
    job.before += out.before
    job.sent = out.buffer
    job.bounds = _bounds(operation.sizes) or chunk_bounds(job.buffer.size, size)
    job.sent_bounds = _bounds(operation.sent) or chunk_bounds(out.buffer.size, size)
    kept = job.sent[job.sent_bounds[rank] : job.sent_bounds[rank + 1]]
    job.before.append((job.buffer[job.bounds[rank] : job.bounds[rank + 1]], kept))
    return job


_PREPARE: dict[Kind, Callable[[Operation, int, int, Schedule], Job]] = {
    Kind.barrier: _barrier,
    Kind.new_group: _barrier,
    Kind.broadcast: _broadcast,
    Kind.all_reduce: _all_reduce,
    Kind.reduce: _reduce,
    Kind.reduce_scatter: _reduce_scatter,
    Kind.all_gather: _gather,
    Kind.gather: _gather,
    Kind.scatter: _scatter,
    Kind.all_to_all: _all_to_all,
}


# ── what they share ──────────────────────────────────────────────────────────────────────────────────


def _bounds(sizes: Sequence[int] | None) -> list[int] | None:
    return None if sizes is None else list(accumulate(sizes, initial=0))


def _reducing(job: Job, mine: Array | None, operation: Operation, size: int, schedule: Schedule) -> Job:
    """Say what is done before and after a reduction; `mine` is this rank's part of the result."""
    op = operation.call.reduce
    assert op is not None
    job.factor = operation.factor
    # Ranks that average the same sums each for itself may narrow to halves by different libraries, too.
    apart = schedule.repeats or (op is ReduceOp.AVG and job.buffer.dtype.itemsize == 2)
    one_nan = apart and job.buffer.dtype.kind not in "biu"
    if mine is not None and (op is ReduceOp.AVG or one_nan):
        job.result, job.op, job.size, job.one_nan = mine, op, size, one_nan
    return job


def _staged(target: Array, source: Array | None) -> Job:
    """Work in `target` itself if it is contiguous, else in a copy that is written back."""
    if target.flags.c_contiguous:
        job = Job(flat(target))
        if source is not None and source is not target:
            job.before.append((target, source))
        return job
    staging: Array = np.empty(target.shape, target.dtype)
    job = Job(flat(staging))
    if source is not None:
        job.before.append((staging, source))
    job.after.append((target, staging))
    return job


def _copy(source: Array) -> Job:
    """Work in memory of our own that starts as a copy of `source`."""
    staging: Array = np.empty(source.shape, source.dtype)
    return Job(flat(staging), before=[(staging, source)])


def _dealt(targets: list[Array]) -> Job:
    """Work in memory of our own that is dealt out to a list of arrays, of any sizes."""
    staging: Array = np.empty(sum(target.size for target in targets), targets[0].dtype)
    return Job(staging, after=list(zip(targets, _parts(staging, targets), strict=True)))


def _joined(sources: list[Array]) -> Job:
    """Work in memory of our own that is filled from a list of arrays, of any sizes."""
    staging: Array = np.empty(sum(source.size for source in sources), sources[0].dtype)
    return Job(staging, before=list(zip(_parts(staging, sources), sources, strict=True)))


def _parts(staging: Array, arrays: list[Array]) -> list[Array]:
    """A buffer as one array for each of a list, in their shapes."""
    bounds = list(accumulate((array.size for array in arrays), initial=0))
    return [
        staging[low:high].reshape(array.shape)
        for array, low, high in zip(arrays, bounds, bounds[1:], strict=False)
    ]
