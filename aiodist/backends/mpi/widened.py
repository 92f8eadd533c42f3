"""Reductions of halves and of small integers, for a library that has none, or others.

They are widened before, and narrowed once after. AVG and PREMUL_SUM of halves are computed in float32, too.
Runs where tasks are filled and emptied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.foreign.task import Allocate, Task
from aiodist.kernels import finish, quiet, scale
from aiodist.kernels.halves import BLOCK, halves
from aiodist.types import Kind, ReduceOp

_COPIES = 4  # through scratch, and a cast of float16 takes longer than a copy


@dataclass(slots=True)
class Widened(Task):
    """A task in a wide dtype, made of one in a narrow one.

    Attributes:
        narrow: the task in the narrow dtype; what is strided goes through it.
    """

    narrow: Task | None = None

    def fill(self) -> None:
        """Fill the narrow one, and widen."""
        assert self.narrow is not None
        assert self.source is not None
        assert self.narrow.source is not None
        self.narrow.fill()
        quiet.run(_widen, self.narrow.source, self.source)
        if self.factor is not None:
            scale(self.source, self.factor)

    def empty(self) -> None:
        """Narrow, and empty the narrow one."""
        assert self.narrow is not None
        if self.target is None:
            return
        assert self.narrow.target is not None
        if self.divisor > 1:
            finish(self.target, ReduceOp.AVG, self.divisor)
        quiet.run(_narrow, self.target, self.narrow.target)
        self.narrow.empty()

    def fill_nbytes(self) -> int:
        """Bytes that `fill` writes."""
        assert self.narrow is not None
        assert self.source is not None
        return self.narrow.fill_nbytes() + self.source.nbytes * (_COPIES + (self.factor is not None))

    def empty_nbytes(self) -> int:
        """Bytes that `empty` writes."""
        assert self.narrow is not None
        if self.target is None:
            return 0
        return self.narrow.empty_nbytes() + self.target.nbytes * (_COPIES + (self.divisor > 1))


def widened(task: Task, dtype: np.dtype[Any], allocate: Allocate) -> Widened:
    """The same reduction in a wider dtype.

    Args:
        task: of halves or integers.
        dtype: the wider one: of halves float32, of integers one of integers.
        allocate: makes the wide arrays.
    """
    assert task.source is not None
    source = allocate(task.source.size, dtype)
    target: Array | None = source
    if task.target is None:
        target = None
    elif task.kind is Kind.reduce_scatter:
        target = allocate(task.target.size, dtype)
    narrow = replace(task, factor=None, divisor=0)
    return Widened(task.operation, source, target, factor=task.factor, divisor=task.divisor, narrow=narrow)


def _widen(narrow: Array, wide: Array) -> None:
    if narrow.dtype.kind in "iu":
        np.copyto(wide, narrow, casting="unsafe")
        return
    for start in range(0, narrow.size, BLOCK):
        part = slice(start, start + BLOCK)
        np.copyto(wide[part], halves.widen(narrow[part], 0))


def _narrow(wide: Array, narrow: Array) -> None:
    if narrow.dtype.kind in "iu":
        np.copyto(narrow, wide, casting="unsafe")
        return
    for start in range(0, narrow.size, BLOCK):
        part = narrow[start : start + BLOCK]
        np.copyto(halves.wide[0, : part.size], wide[start : start + BLOCK])
        halves.narrow(part)
