"""Collectives of an engine that can only send and receive: each is one exchange, and a reduction here.

Reductions gather all ranks' parts and reduce them in rank order: simple, bitwise alike on all ranks, with
memory for `size` tensors. An engine that has better ones overrides them. For tensors on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.foreign import moves
from aiodist.backends.foreign.task import Task
from aiodist.kernels import copy_into, reduce_into
from aiodist.types import ReduceOp

if TYPE_CHECKING:
    from aiodist.backends.foreign.engine import Done, Engine


def all_reduce(engine: Engine, task: Task, done: Done) -> None:
    """Everybody's to everybody, and each reduces all."""
    source, target = given(task.source), given(task.target)
    size = engine.setup.size
    rows = np.empty(source.size * size, source.dtype)

    def received() -> None:
        fold(moves.parts(rows, size), target, task.reduce)
        done()

    engine.exchange(moves.all_gathered(size, source, rows), received)


def reduce(engine: Engine, task: Task, done: Done) -> None:
    """Everybody's to the root, which reduces all."""
    source, setup = given(task.source), engine.setup
    rows = np.empty(source.size * setup.size, source.dtype) if setup.rank == task.root else None

    def received() -> None:
        if rows is not None:
            fold(moves.parts(rows, setup.size), given(task.target), task.reduce)
        done()

    engine.exchange(moves.gathered(setup.rank, setup.size, task.root, source, rows), received)


def reduce_scatter(engine: Engine, task: Task, done: Done) -> None:
    """A part of everybody's to everybody, who reduces all that came."""
    source, target = given(task.source), given(task.target)
    size = engine.setup.size
    rows = np.empty(source.size, source.dtype)

    def received() -> None:
        fold(moves.parts(rows, size), target, task.reduce)
        done()

    engine.exchange(moves.exchanged(size, source, rows, None, None), received)


def broadcast(engine: Engine, task: Task, done: Done) -> None:
    """The root's to everybody."""
    rank, size, target = engine.setup.rank, engine.setup.size, given(task.target)
    if rank == task.root:
        engine.exchange(
            moves.worth([moves.Move(True, peer, target) for peer in range(size) if peer != rank]), done
        )
    else:
        engine.exchange(moves.worth([moves.Move(False, task.root, target)]), done)


def all_gather(engine: Engine, task: Task, done: Done) -> None:
    """Everybody's to everybody."""
    engine.exchange(moves.all_gathered(engine.setup.size, given(task.source), given(task.target)), done)


def gather(engine: Engine, task: Task, done: Done) -> None:
    """Everybody's to the root."""
    setup = engine.setup
    engine.exchange(moves.gathered(setup.rank, setup.size, task.root, given(task.source), task.target), done)


def scatter(engine: Engine, task: Task, done: Done) -> None:
    """The root's parts to everybody."""
    setup = engine.setup
    engine.exchange(moves.scattered(setup.rank, setup.size, task.root, task.source, given(task.target)), done)


def all_to_all(engine: Engine, task: Task, done: Done) -> None:
    """A part of everybody's to everybody."""
    operation = task.operation
    engine.exchange(
        moves.exchanged(
            engine.setup.size, given(task.source), given(task.target), operation.sent, operation.sizes
        ),
        done,
    )


def given(array: Array | None) -> Array:
    """An array that this operation has on this rank."""
    assert array is not None
    return array


def fold(rows: list[Array], target: Array, op: ReduceOp) -> None:
    """Reduce in rank order, the lower rank on the left (law 3)."""
    copy_into(target, rows[0])
    for row in rows[1:]:
        reduce_into(target, row, op, src_left=False)
