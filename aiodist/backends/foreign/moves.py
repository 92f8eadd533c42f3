"""Collectives as sends and receives between members: which part goes where.

The part that each rank gets follows from the postcondition, so any collective is one exchange, with parts of
any sizes. A reduction gathers the parts that it is made of, and the task reduces them in rank order when it
is emptied, off the loop: simple, bitwise alike on all ranks, with memory for all of them. Geometry only; no
memory is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aiodist.backends.base import Array
from aiodist.backends.buffers import cut
from aiodist.backends.foreign.task import Task
from aiodist.base.operations import ROLES, Parts, origins, receivers


class Move(NamedTuple):
    """One side of one message of a collective.

    Attributes:
        sends: whether this rank sends; else it receives.
        peer: group rank of the other side; this rank itself where it keeps a part: a send and a receive.
        array: contiguous, one axis. Never empty.
    """

    sends: bool
    peer: int
    array: Array


def moves_of(task: Task, rank: int, size: int) -> list[Move]:
    """All that a collective moves to and from member `rank` of `size`, its own part included.

    Where the collective reduces, the task gets rows for what comes, and reduces them when it is emptied.
    """
    kind, root = task.kind, task.root
    roles, given, taken = ROLES[kind], task.send, task.recv
    senders = [member for part in origins(kind, rank, size, root) for member in part]
    if roles.reduces and senders:
        taken = _rows(task, len(senders))
        task.gathered(taken)
    for_each = roles.source is Parts.EACH
    return worth(
        [Move(True, peer, given[peer if for_each else 0]) for peer in receivers(kind, rank, size, root)]
        + [Move(False, peer, array) for peer, array in zip(senders, taken, strict=True)]
    )


def _rows(task: Task, count: int) -> list[Array]:
    """Memory for so many members' parts, each as large as what this rank gets."""
    (part,) = task.recv
    return cut(task.allocate(part.size * count, part.dtype), None, count)


def worth(moves: Sequence[Move]) -> list[Move]:
    """The moves that are not empty: libraries differ in what they make of empty messages."""
    return [move for move in moves if move.array.size]
