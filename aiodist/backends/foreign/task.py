"""One operation for an engine: contiguous arrays, and what is copied into them before and out of them after.

Which array is which is geometry, the same for tensors of any place; who owns the place allocates and copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from aiodist.backends.base import Array, Operation, flat
from aiodist.kernels import copy_into, finish, reduce_into, scale
from aiodist.types import BFLOAT16, Kind, ReduceOp

_HALF_PASSES = 16  # the arithmetic of halves takes that many times as long as a copy, without torch

Allocate = Callable[[int, "np.dtype[np.generic]"], Array]
"""Makes an uninitialised contiguous array of so many elements."""


@dataclass(slots=True)
class Task:
    """One operation for an engine.

    Attributes:
        operation: the group's; its `call` says what all members agreed on.
        source: what is read, or None. Contiguous, one axis.
        target: what is written, or None; may be `source` (in place). Likewise.
        before: (to, from) copies of the user's arrays, of any strides, into `source`.
        after: (to, from) copies out of `target`.
        factor: what `source` is multiplied by once it is filled (PREMUL_SUM), or None.
        divisor: what `target` is divided by at the end (AVG); 0 where the engine does that by itself.
        rows: all ranks' sources, where the engine has gathered them and leaves it to the host to reduce them.
    """

    operation: Operation
    source: Array | None = None
    target: Array | None = None
    before: list[tuple[Array, Array]] = field(default_factory=list)
    after: list[tuple[Array, Array]] = field(default_factory=list)
    factor: float | None = None
    divisor: int = 0
    rows: list[Array] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """Which operation."""
        return self.operation.call.kind

    @property
    def root(self) -> int:
        """Group rank of the root; -1 where there is none."""
        return self.operation.call.root

    @property
    def reduce(self) -> ReduceOp:
        """How elements combine: PREMUL_SUM is a SUM for the engine, and so is AVG unless it divides."""
        op = self.operation.call.reduce
        assert op is not None
        return ReduceOp.SUM if op is ReduceOp.PREMUL_SUM or (op is ReduceOp.AVG and self.divisor) else op

    def fill(self) -> None:
        """Do what comes before, on the host."""
        for to, source in self.before:
            copy_into(to, source)
        if self.factor is not None:
            assert self.source is not None
            scale(self.source, self.factor)

    def empty(self) -> None:
        """Do what comes after, on the host."""
        if self.target is not None:
            if self.rows:
                _fold(self.rows, self.target, self.reduce)
            # Each rank folds, and narrows to halves, by itself, and the bits of a NaN may differ (law 3).
            one_nan = bool(self.rows) or (bool(self.divisor) and self.target.dtype.itemsize == 2)
            finish(self.target, ReduceOp.AVG, self.divisor, one_nan=one_nan)
        for to, source in self.after:
            copy_into(to, source)

    def fill_nbytes(self) -> int:
        """Bytes that `fill` writes."""
        scaled = self.source.nbytes if self.factor is not None and self.source is not None else 0
        return sum(to.nbytes for to, _ in self.before) + scaled

    def empty_nbytes(self) -> int:
        """Bytes that `empty` writes."""
        passes = len(self.rows) * (_HALF_PASSES if self._half else 1) + (self.divisor > 1)
        reduced = 0 if self.target is None else passes * self.target.nbytes
        return sum(to.nbytes for to, _ in self.after) + reduced

    @property
    def _half(self) -> bool:
        return self.target is not None and self.target.dtype in (BFLOAT16, np.float16)


def prepare(operation: Operation, rank: int, size: int, allocate: Allocate, divides: bool = False) -> Task:
    """The task of an operation.

    Args:
        operation: the group's.
        rank: this process's group rank, of `size`.
        allocate: makes what is staged.
        divides: the engine knows AVG.
    """
    task = Task(operation)
    call = operation.call
    if call.kind is Kind.broadcast:
        _in_place(task, operation.target, allocate, reads=rank == call.root, writes=rank != call.root)
    elif operation.source is operation.target and operation.source is not None:
        _in_place(task, operation.target, allocate, reads=True, writes=True)
    else:
        task.source = _read(task, operation.source, allocate, keep=operation.factor is None)
        task.target = _written(task, operation.target, allocate)
    task.factor = operation.factor
    if call.reduce is ReduceOp.AVG and not divides:
        task.divisor = size
    return task


def prepare_message(operation: Operation, allocate: Allocate) -> Task:
    """The task of a send or a receive."""
    task = Task(operation)
    if operation.source is not None:
        task.source = _read(task, operation.source, allocate, keep=True)
    else:
        task.target = _written(task, operation.target, allocate)
    return task


def _in_place(task: Task, tensor: object, allocate: Allocate, reads: bool, writes: bool) -> None:
    """One array that is read, or written, or both."""
    assert isinstance(tensor, np.ndarray)
    if tensor.flags.c_contiguous:
        task.source = task.target = flat(tensor)
        return
    task.source = task.target = staging = allocate(tensor.size, tensor.dtype)
    if reads:
        task.before.append((staging.reshape(tensor.shape), tensor))
    if writes:
        task.after.append((tensor, staging.reshape(tensor.shape)))


def _read(task: Task, source: Array | list[Array] | None, allocate: Allocate, keep: bool) -> Array | None:
    """What is read, as one contiguous array; a copy if the user's may not be kept as it is."""
    if source is None:
        return None
    arrays = source if isinstance(source, list) else [source]
    if keep and len(arrays) == 1 and arrays[0].flags.c_contiguous:
        return flat(arrays[0])
    staging = allocate(sum(array.size for array in arrays), arrays[0].dtype)
    task.before += list(zip(shaped(staging, arrays), arrays, strict=True))
    return staging


def _written(task: Task, target: Array | list[Array] | None, allocate: Allocate) -> Array | None:
    if target is None:
        return None
    arrays = target if isinstance(target, list) else [target]
    if len(arrays) == 1 and arrays[0].flags.c_contiguous:
        return flat(arrays[0])
    staging = allocate(sum(array.size for array in arrays), arrays[0].dtype)
    task.after += list(zip(arrays, shaped(staging, arrays), strict=True))
    return staging


def _fold(rows: Sequence[Array], target: Array, op: ReduceOp) -> None:
    """Reduce in rank order, the lower rank on the left (law 3)."""
    copy_into(target, rows[0])
    for row in rows[1:]:
        reduce_into(target, row, op, src_left=False)


def shaped(staging: Array, arrays: Sequence[Array]) -> list[Array]:
    """A contiguous array as one for each of a list, in their shapes."""
    ends = accumulate((array.size for array in arrays), initial=0)
    return [
        staging[low:high].reshape(array.shape)
        for array, (low, high) in zip(arrays, pairwise(ends), strict=True)
    ]
