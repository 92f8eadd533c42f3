"""Binomial trees for operations with a root.

Ranks are counted from the root on. In the tree the parent of a rank is that number with its lowest
set bit cleared, so every subtree is an interval of ranks.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations
in MPICH", IJHPCA 19 (2005), sections 4.3 and 4.7.
"""

from __future__ import annotations

from aiodist.schedules.steps import Recv, RecvReduce, Schedule, Send, Step, schedule


def _depth(size: int) -> int:
    return (size - 1).bit_length()


def broadcast(rank: int, size: int, root: int) -> Schedule:
    """From the root down the tree; any size, any root.

    Buffer: the tensor, in one chunk. Rounds: ceil(log2 n). Bytes sent: by the root ceil(log2 n)
    tensors, by a leaf none.
    """
    me = (rank - root) % size
    depth = _depth(size)
    rounds: list[tuple[Step, ...]] = []
    for i in range(depth):
        distance = 1 << (depth - 1 - i)  # far subtrees first: they are the deepest
        step: tuple[Step, ...] = ()
        if me % (2 * distance) == 0 and me + distance < size:
            step = (Send((me + distance + root) % size, 0, 1),)
        elif me % (2 * distance) == distance:
            step = (Recv((me - distance + root) % size, 0, 1),)
        rounds.append(step)
    return schedule("binomial", 1, rounds)


def reduce(rank: int, size: int, root: int) -> Schedule:
    """Up the tree to the root; any size, any root.

    Buffer: the tensor, in one chunk; on inner ranks of the tree a working copy, since partials pass
    through it. The ranks' values are combined in order, counted from the root on.
    Rounds: ceil(log2 n). Bytes sent: one tensor by every rank but the root.
    """
    me = (rank - root) % size
    rounds: list[tuple[Step, ...]] = []
    for i in range(_depth(size)):
        distance = 1 << i
        step: tuple[Step, ...] = ()
        if me % (2 * distance) == 0 and me + distance < size:
            step = (RecvReduce((me + distance + root) % size, 0, 1, left=False),)
        elif me % (2 * distance) == distance:
            step = (Send((me - distance + root) % size, 0, 1),)
        rounds.append(step)
    return schedule("binomial", 1, rounds)
