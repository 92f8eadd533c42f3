"""One operation for an engine: its buffers, and what the engine has to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from aiodist.backends.arrays.kernels import copy_into, cost_ns, reduce_into
from aiodist.backends.base import Array, Operation
from aiodist.backends.buffers import Allocate, Buffers, buffers
from aiodist.base.types import Kind, ReduceOp


@dataclass(slots=True, kw_only=True)
class Task(Buffers):
    """One operation for an engine. `source` and `target` are contiguous arrays of one axis, or None.

    Attributes:
        operation: the group's; its `call` says what all members agreed on.
        rows: what the result is made of, where the engine has gathered it and leaves it to the host to
            reduce.
    """

    operation: Operation
    rows: list[Array] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """The kind of operation."""
        return self.operation.call.kind

    @property
    def root(self) -> int:
        """Group rank of the root; -1 where there is none."""
        return self.operation.call.root

    @property
    def reduce(self) -> ReduceOp:
        """The op that combines elements: PREMUL_SUM is SUM to the engine, and AVG too unless it averages."""
        op = self.operation.call.combine
        assert op is not None
        return ReduceOp.SUM if op is ReduceOp.AVG and self.divisor else op

    @property
    def uneven(self) -> bool:
        """Whether parts differ in size, or may: `send` and `recv` say how."""
        operation = self.operation
        return operation.source_sizes is not None or operation.target_sizes is not None

    def gathered(self, rows: Sequence[Array]) -> None:
        """Leave it to the host to reduce rows, which the engine fills: in rank order, the lower rank on the
        left (law 3). Each rank does so by itself, and AVG is divided here also where the engine would."""
        self.rows = list(rows)
        self.one_nan = True
        if self.operation.call.reduce is ReduceOp.AVG:
            self.divisor = len(rows)

    def empty(self) -> None:
        """Reduce and copy afterwards, on the host."""
        if self.rows and self.target is not None:
            copy_into(self.target, self.rows[0])
            for row in self.rows[1:]:
                reduce_into(self.target, row, self.reduce, src_left=False)
        Buffers.empty(self)

    def empty_ns(self) -> float:
        """The estimated cost of `empty`; 0 where it does nothing."""
        cost = Buffers.empty_ns(self)
        if self.rows and self.target is not None:
            cost += len(self.rows) * cost_ns(self.target.nbytes, self.target.dtype, self.reduce)
        return cost


def prepare(
    operation: Operation, rank: int, size: int, allocate: Allocate = np.empty, averages: bool = False
) -> Task:
    """The task of an operation.

    Args:
        operation: the group's.
        rank: this process's group rank, of `size`.
        allocate: makes what is staged.
        averages: the engine knows AVG.
    """
    made = buffers(operation, rank, size, allocate)
    task = Task(**{one.name: getattr(made, one.name) for one in fields(Buffers)}, operation=operation)
    if operation.call.reduce is not None:
        task.result = task.target
        if operation.call.reduce is ReduceOp.AVG and not averages:
            task.divisor = size
            # Each rank narrows to halves by itself, and the bits of a NaN may differ.
            task.one_nan = task.target is not None and task.target.dtype.itemsize == 2
    return task
