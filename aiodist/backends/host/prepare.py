"""Which buffer an operation works on, what is copied into it before and out of it after.

A schedule works on one contiguous buffer. Where the user's array is contiguous it *is* that buffer; a
strided one is staged, and written back when the operation has ended well (gloo and NCCL silently
misread strided tensors).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from aiodist.backends.base import Array, Operation, flat
from aiodist.backends.host.offload import copy_cost_ns
from aiodist.kernels import copy_into, cost_ns, finish
from aiodist.schedules import Schedule, chunk_bounds
from aiodist.types import Kind, ReduceOp


@dataclass(slots=True)
class Job:
    """The memory of one operation on this rank.

    Args:
        buffer: contiguous, one axis; what the schedule's chunks divide.
        before: (to, from) copies that fill it.
        after: (to, from) copies that empty it.
        result: part of the buffer that holds this rank's result before the last touch, where there is one to
            give: the division of AVG, or one NaN for all.
        op: the reduction.
        size: ranks of the group.
        one_nan: ranks computed the result each for itself, and NaNs may differ in their bits (law 3).
    """

    buffer: Array
    before: list[tuple[Array, Array]] = field(default_factory=list)
    after: list[tuple[Array, Array]] = field(default_factory=list)
    result: Array | None = None
    op: ReduceOp = ReduceOp.SUM
    size: int = 1
    one_nan: bool = False

    def fill(self) -> None:
        """Do the copies before."""
        for to, source in self.before:
            copy_into(to, source)

    def empty(self) -> None:
        """Give the result its last touch, do the copies after."""
        if self.result is not None:
            finish(self.result, self.op, self.size, one_nan=self.one_nan)
        for to, source in self.after:
            copy_into(to, source)

    def fill_ns(self) -> float:
        """What `fill` costs, roughly."""
        return sum(copy_cost_ns(to.nbytes) for to, _ in self.before)

    def empty_ns(self) -> float:
        """What `empty` costs, roughly."""
        cost = sum(copy_cost_ns(to.nbytes) for to, _ in self.after)
        if self.result is not None:
            cost += cost_ns(self.result.nbytes, self.result.dtype, ReduceOp.SUM)
        return cost


def prepare(operation: Operation, rank: int, size: int, schedule: Schedule) -> Job:
    """The job of a collective on rank `rank` of `size` that runs by `schedule`."""
    call = operation.call
    source, target = operation.source, operation.target
    if call.kind in (Kind.barrier, Kind.new_group):
        return Job(np.empty(0, np.uint8))
    if call.kind is Kind.broadcast:
        assert isinstance(target, np.ndarray)
        job = _staged(target, target if rank == call.root else None)
        if rank == call.root:
            job.after.clear()  # the root's tensor is what it was
        return job
    reduced: Array | None
    if call.kind is Kind.all_reduce:
        assert isinstance(source, np.ndarray)
        assert isinstance(target, np.ndarray)
        job = _staged(target, source)
        reduced = job.buffer
    elif call.kind is Kind.reduce:
        assert isinstance(source, np.ndarray)
        if isinstance(target, np.ndarray):
            job = _staged(target, source)
            reduced = job.buffer
        else:  # not the root: partial results pass through memory of our own
            job = _copy(source) if schedule.writes or not source.flags.c_contiguous else Job(flat(source))
            reduced = None
    elif call.kind is Kind.all_gather:
        assert isinstance(source, np.ndarray)
        assert target is not None
        count = source.size
        job = _staged(target, None) if isinstance(target, np.ndarray) else _scattered(target)
        mine = job.buffer[rank * count : (rank + 1) * count]
        job.before.append((mine.reshape(source.shape), source))
        reduced = None
    elif call.kind is Kind.reduce_scatter:
        assert source is not None
        assert isinstance(target, np.ndarray)
        job = _copy(source) if isinstance(source, np.ndarray) else _gathered(source)
        bounds = chunk_bounds(job.buffer.size, size)
        reduced = job.buffer[bounds[rank] : bounds[rank + 1]]
        job.after.append((target, reduced.reshape(target.shape)))
    else:
        raise AssertionError(f"{call.kind.name} is no collective")
    one_nan = schedule.repeats and job.buffer.dtype.kind not in "biu"
    if reduced is not None and (call.reduce is ReduceOp.AVG or one_nan):
        assert call.reduce is not None
        job.result, job.op, job.size, job.one_nan = reduced, call.reduce, size, one_nan
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


def _scattered(targets: list[Array]) -> Job:
    """Work in memory of our own that is dealt out to a list of arrays."""
    staging: Array = np.empty((len(targets), *targets[0].shape), targets[0].dtype)
    return Job(flat(staging), after=list(zip(targets, staging, strict=True)))


def _gathered(sources: list[Array]) -> Job:
    """Work in memory of our own that is filled from a list of arrays."""
    staging: Array = np.empty((len(sources), *sources[0].shape), sources[0].dtype)
    return Job(flat(staging), before=list(zip(staging, sources, strict=True)))


def prepare_message(operation: Operation) -> Job:
    """The job of a send or a receive."""
    source = operation.source
    if isinstance(source, np.ndarray):
        return Job(flat(source)) if source.flags.c_contiguous else _copy(source)
    assert isinstance(operation.target, np.ndarray)
    return _staged(operation.target, None)
