"""Reductions of halves and of small integers, for a library that has none, or others.

They are widened before, and narrowed once after. AVG and PREMUL_SUM of halves are computed in float32, too.
Runs where tasks are filled and emptied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aiodist.backends.arrays.kernels import copy_cost_ns, scale, unwarned
from aiodist.backends.arrays.kernels.halves import BLOCK, halves
from aiodist.backends.base import Array
from aiodist.backends.buffers import cut
from aiodist.backends.foreign.task import Task
from aiodist.base.operations import ROLES

_COPIES = 4  # through scratch, and a cast of float16 takes longer than a copy


@dataclass(slots=True, kw_only=True)
class Widened(Task):
    """A task in a wide dtype, made of one in a narrow one.

    Attributes:
        narrow: the task in the narrow dtype; what is strided goes through it.
    """

    narrow: Task

    def fill(self) -> None:
        """Fill the narrow task, and widen."""
        assert self.source is not None
        assert self.narrow.source is not None
        self.narrow.fill()
        unwarned.run(_widen, self.narrow.source, self.source)
        if self.factor is not None:
            scale(self.source, self.factor)

    def empty(self) -> None:
        """Narrow, and empty the narrow task."""
        if self.target is None:
            return
        assert self.narrow.target is not None
        Task.empty(self)
        unwarned.run(_narrow, self.target, self.narrow.target)
        self.narrow.empty()

    def fill_ns(self) -> float:
        """The estimated cost of `fill`."""
        assert self.source is not None
        copies = _COPIES + (self.factor is not None)
        return self.narrow.fill_ns() + copy_cost_ns(self.source.nbytes * copies)

    def empty_ns(self) -> float:
        """The estimated cost of `empty`."""
        if self.target is None:
            return 0.0
        return self.narrow.empty_ns() + Task.empty_ns(self) + copy_cost_ns(self.target.nbytes * _COPIES)


def widened(task: Task, dtype: np.dtype[Any]) -> Widened:
    """A reduction in a wider dtype, where MPI has none for the narrow one.

    Args:
        task: of halves or integers.
        dtype: the wider one: of halves float32, of integers one of integers.
    """
    assert task.source is not None
    source = task.allocate(task.source.size, dtype)
    target: Array | None = source
    if task.target is None:
        target = None
    elif ROLES[task.kind].cut:
        target = task.allocate(task.target.size, dtype)
    return Widened(
        allocate=task.allocate,
        operation=task.operation,
        source=source,
        target=target,
        send=cut(source, [part.size for part in task.send], len(task.send)),
        recv=[] if target is None else [target],
        factor=task.factor,
        result=target,
        divisor=task.divisor,
        narrow=replace(task, factor=None, result=None),
    )


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
