"""Binomial trees for operations with a root.

Ranks are counted from the root on. In the tree the parent of a rank is that number with its lowest
set bit cleared, so every subtree is an interval of ranks.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations
in MPICH", IJHPCA 19 (2005), sections 4.3 and 4.7; for gather and scatter, M. Barnett, L. Shuler, S.
Gupta, D. Payne, R. van de Geijn and J. Watts, "Building a High-Performance Collective Communication
Library", Supercomputing '94.
"""

from __future__ import annotations

from aiodist.backends.schedules.steps import (
    Recv,
    RecvReduce,
    Rounds,
    Schedule,
    Send,
    Step,
    distances,
    from_root,
    schedule,
)


def broadcast(rank: int, size: int, root: int) -> Schedule:
    """Send the tensor from the root down the tree; any size, any root.

    Buffer: the tensor, in one chunk. Rounds: ceil(log2 n). Bytes sent: by the root ceil(log2 n)
    tensors, by a leaf none.
    """
    me = (rank - root) % size
    rounds: list[tuple[Step, ...]] = []
    for distance in reversed(distances(size)):  # far subtrees first: they are the deepest
        step: tuple[Step, ...] = ()
        if me % (2 * distance) == 0 and me + distance < size:
            step = (Send((me + distance + root) % size, 0, 1),)
        elif me % (2 * distance) == distance:
            step = (Recv((me - distance + root) % size, 0, 1),)
        rounds.append(step)
    return schedule("binomial", 1, rounds)


def reduce(rank: int, size: int, root: int) -> Schedule:
    """Reduce up the tree to the root; any size, any root.

    Buffer: the tensor, in one chunk; on inner ranks of the tree a working copy, since partials pass
    through it. The ranks' values are combined in order, counted from the root on.
    Rounds: ceil(log2 n). Bytes sent: one tensor by every rank but the root.
    """
    me = (rank - root) % size
    rounds: list[tuple[Step, ...]] = []
    for distance in distances(size):
        step: tuple[Step, ...] = ()
        if me % (2 * distance) == 0 and me + distance < size:
            step = (RecvReduce((me + distance + root) % size, 0, 1, left=False),)
        elif me % (2 * distance) == distance:
            step = (Send((me - distance + root) % size, 0, 1),)
        rounds.append(step)
    return schedule("binomial", 1, rounds)


def gather(rank: int, size: int, root: int) -> Schedule:
    """Gather up the tree to the root, each rank passing on the chunks of its subtree; any size, any root.

    Buffer: the result, in `size` chunks, with this rank's input already in chunk `rank`; inner ranks of
    the tree need one too, but touch only their subtree's part. Ranges wrap where the root is not 0.
    Rounds: ceil(log2 n). Bytes sent: by a rank but the root the chunks of its subtree, at most n/2 of
    them; over the critical path (n-1)/n of the buffer.
    """
    rounds = gather_rounds((rank - root) % size, size)
    return schedule("binomial", size, from_root(rounds, root, size, chunks=True))


def scatter(rank: int, size: int, root: int) -> Schedule:
    """Scatter from the root down the tree, each rank getting the chunks of its subtree; any size, any root.

    Buffer: on the root the input, in `size` chunks; on the others memory for it, of which they touch
    only their subtree's part. The result is chunk `rank`. Ranges wrap where the root is not 0.
    Rounds: ceil(log2 n). Bytes sent: by the root (n-1)/n of the buffer, by a leaf none.
    """
    rounds = scatter_rounds((rank - root) % size, size)
    return schedule("binomial", size, from_root(rounds, root, size, chunks=True))


def gather_rounds(me: int, size: int) -> Rounds:
    """Rounds that move chunk r from rank r to rank 0; nothing wraps."""
    rounds: Rounds = []
    for distance in distances(size):
        step: tuple[Step, ...] = ()
        if me % (2 * distance) == 0 and me + distance < size:
            step = (Recv(me + distance, me + distance, min(me + 2 * distance, size)),)
        elif me % (2 * distance) == distance:
            step = (Send(me - distance, me, min(me + distance, size)),)
        rounds.append(step)
    return rounds


def scatter_rounds(me: int, size: int) -> Rounds:
    """Rounds that move chunk r from rank 0 to rank r, the other way round than in `gather_rounds`."""

    def reverse(step: Step) -> Step:
        if isinstance(step, Send):
            return Recv(step.peer, step.start, step.stop)
        return Send(step.peer, step.start, step.stop)

    return [tuple(map(reverse, steps)) for steps in reversed(gather_rounds(me, size))]


def subtree(me: int, size: int) -> int:
    """The number of ranks in the subtree of rank `me`, itself included, in the tree with root 0."""
    return min(me & -me, size - me) if me else size
