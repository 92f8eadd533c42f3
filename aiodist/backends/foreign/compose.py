"""Collectives of an engine that can only send and receive: each is one exchange, and a reduction here.

Reductions gather all ranks' parts, and the task reduces them in rank order when it is emptied, off the loop:
simple, bitwise alike on all ranks, with memory for `size` tensors. An engine that has better ones overrides
them. For tensors on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.foreign import moves
from aiodist.backends.foreign.task import Task
from aiodist.types import ReduceOp

if TYPE_CHECKING:
    from aiodist.backends.foreign.engine import Done, Engine


def all_reduce(engine: Engine, task: Task, done: Done) -> None:
    """Everybody's to everybody, and each reduces all."""
    source, size = given(task.source), engine.setup.size
    rows = np.empty(source.size * size, source.dtype)
    leave(task, rows, size)
    engine.exchange(moves.all_gathered(size, source, rows), done)


def reduce(engine: Engine, task: Task, done: Done) -> None:
    """Everybody's to the root, which reduces all."""
    source, setup = given(task.source), engine.setup
    rows = None
    if setup.rank == task.root:
        rows = np.empty(source.size * setup.size, source.dtype)
        leave(task, rows, setup.size)
    engine.exchange(moves.gathered(setup.rank, setup.size, task.root, source, rows), done)


def reduce_scatter(engine: Engine, task: Task, done: Done) -> None:
    """A part of everybody's to everybody, who reduces all that came."""
    source, size = given(task.source), engine.setup.size
    rows = np.empty(source.size, source.dtype)
    leave(task, rows, size)
    engine.exchange(moves.exchanged(size, source, rows, None, None), done)


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


def leave(task: Task, rows: Array, size: int) -> None:
    """Leave it to the task to reduce what is exchanged, also where the engine itself would divide."""
    task.rows = moves.parts(rows, size)
    if task.reduce is ReduceOp.AVG:
        task.divisor = size


def given(array: Array | None) -> Array:
    """An array that this operation has on this rank."""
    assert array is not None
    return array
