"""Ring algorithms: every rank talks to its two neighbours only.

They send the fewest bytes that are possible and take the most rounds: for large messages.

Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", J. Parallel Distrib. Comput. 69 (2009); for all_gather, R. Thakur, R. Rabenseifner and
W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19 (2005).
"""

from __future__ import annotations

from aiodist.backends.schedules.steps import Recv, RecvReduce, Rounds, Schedule, Send, schedule


def reduce_rounds(rank: int, size: int) -> Rounds:
    """Rounds in which chunk c starts at rank c + 1, passes every rank once and ends, complete, at rank c."""
    right, left = (rank + 1) % size, (rank - 1) % size
    rounds: Rounds = []
    for i in range(size - 1):
        out, into = (rank - 1 - i) % size, (rank - 2 - i) % size
        rounds.append((Send(right, out, out + 1), RecvReduce(left, into, into + 1, left=True)))
    return rounds


def gather_rounds(rank: int, size: int) -> Rounds:
    """Rounds in which every rank starts with chunk `rank` and passes on what it received last."""
    right, left = (rank + 1) % size, (rank - 1) % size
    rounds: Rounds = []
    for i in range(size - 1):
        out, into = (rank - i) % size, (rank - 1 - i) % size
        rounds.append((Send(right, out, out + 1), Recv(left, into, into + 1)))
    return rounds


def all_reduce(rank: int, size: int) -> Schedule:
    """Run reduce-scatter, then all-gather, around the ring; any size.

    Buffer: the tensor, in `size` chunks. Each chunk is reduced once, in ring order, and handed out.
    Rounds: 2(n-1). Bytes sent by a rank: 2(n-1)/n of the tensor.
    """
    return schedule("ring", size, reduce_rounds(rank, size) + gather_rounds(rank, size))


def reduce_scatter(rank: int, size: int) -> Schedule:
    """Reduce and scatter around the ring; any size.

    Buffer: a working copy of the whole input, in `size` chunks; the result is chunk `rank`, what the
    others hold afterwards means nothing. Rounds: n-1. Bytes sent by a rank: (n-1)/n of the input.
    """
    return schedule("ring", size, reduce_rounds(rank, size))


def all_gather(rank: int, size: int) -> Schedule:
    """Gather around the ring; any size.

    Buffer: the result, in `size` chunks, with this rank's input already in chunk `rank`.
    Rounds: n-1. Bytes sent by a rank: (n-1)/n of the result.
    """
    return schedule("ring", size, gather_rounds(rank, size))
