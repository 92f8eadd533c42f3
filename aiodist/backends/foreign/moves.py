"""Collectives as sends and receives between members: which part goes where.

The part that each rank gets follows from the table of roles, so any collective is one exchange, with parts of
any sizes. A reduction gathers all ranks' parts, and the task reduces them in rank order when it is emptied,
off the loop: simple, bitwise alike on all ranks, with memory for `size` parts. Geometry only; no memory is
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aiodist.backends.base import Array
from aiodist.backends.buffers import cut
from aiodist.backends.foreign.task import Task
from aiodist.base.operations import ROLES, Parts


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
    roles, root = ROLES[task.kind], task.root
    given, taken = task.send, task.recv
    if roles.reduces:
        taken = _rows(task, size) if roles.gets(rank, root) else []
        if taken:
            task.gathered(taken, size)
    for_each = roles.source is Parts.EACH
    from_each = roles.reduces or roles.target is Parts.EACH
    receivers = [peer for peer in range(size) if given and roles.gets(peer, root)]
    senders = [peer for peer in range(size) if taken and roles.gives(peer, root)]
    return worth(
        [Move(True, peer, given[peer if for_each else 0]) for peer in receivers]
        + [Move(False, peer, taken[peer if from_each else 0]) for peer in senders]
    )


def _rows(task: Task, size: int) -> list[Array]:
    """Memory for a part from every member, each as large as what this rank gets."""
    (part,) = task.recv
    return cut(task.allocate(part.size * size, part.dtype), None, size)


def worth(moves: Sequence[Move]) -> list[Move]:
    """The moves that are not empty: libraries differ in what they make of empty messages."""
    return [move for move in moves if move.array.size]
