"""Bruck's algorithms: partners 1, 2, 4, … further around the circle; any size.

They take the fewest rounds that are possible and send the fewest bytes that are possible, for every size.
What a rank has is a range of chunks that begins at its own and may wrap, and wrapped ranges are copied:
for small and medium messages. (The original keeps its chunks rotated and turns them at the end; ranges
that wrap make that needless.)

Source: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, "Efficient Algorithms for All-to-All
Communications in Multiport Message-Passing Systems", IEEE Trans. Parallel Distrib. Syst. 8 (1997); for
the reductions, J. L. Träff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms",
arXiv:2410.14234 (2024), here with the distances of Bruck.
"""

from __future__ import annotations

from aiodist.backends.schedules.steps import Recv, RecvReduce, Rounds, Schedule, Send, distances, schedule


def all_gather(rank: int, size: int) -> Schedule:
    """Collect from the ranks at distance 1, 2, 4, … what they have; any size.

    Buffer: the result, in `size` chunks, with this rank's input already in chunk `rank`. Ranges wrap.
    Rounds: ceil(log2 n). Bytes sent by a rank: (n-1)/n of the result.
    """
    return schedule("bruck", size, _gather_rounds(rank, size))


def reduce_scatter(rank: int, size: int) -> Schedule:
    """Run Bruck's all_gather backwards: where a chunk was copied to, its partial comes from; any size.

    Buffer: a working copy of the whole input, in `size` chunks; the result is chunk `rank`, what the
    others hold afterwards means nothing. Ranges wrap. Each chunk is reduced once, though not in the order
    of ranks. Rounds: ceil(log2 n). Bytes sent by a rank: (n-1)/n of the input.
    """
    return schedule("bruck", size, _reduce_rounds(rank, size))


def all_reduce(rank: int, size: int) -> Schedule:
    """Run reduce-scatter, then all-gather; any size.

    Buffer: the tensor, in `size` chunks. Ranges wrap. Each chunk is reduced once and handed out.
    Rounds: 2 ceil(log2 n). Bytes sent by a rank: 2(n-1)/n of the tensor.
    """
    return schedule("bruck", size, _reduce_rounds(rank, size) + _gather_rounds(rank, size))


def _gather_rounds(rank: int, size: int) -> Rounds:
    """Rounds of the gather: before each a rank has as many chunks as the distance, its own the first."""
    return [
        (Send(behind, rank, rank + count), Recv(ahead, ahead, ahead + count))
        for ahead, behind, count in _partners(rank, size)
    ]


def _reduce_rounds(rank: int, size: int) -> Rounds:
    """Rounds in which a rank's partials go where its chunks came from, the last distance first."""
    return [
        (Send(ahead, ahead, ahead + count), RecvReduce(behind, rank, rank + count, left=behind < rank))
        for ahead, behind, count in reversed(_partners(rank, size))
    ]


def _partners(rank: int, size: int) -> list[tuple[int, int, int]]:
    """The rank ahead and the rank behind at each distance, and how many chunks pass between two of them."""
    return [
        ((rank + distance) % size, (rank - distance) % size, min(distance, size - distance))
        for distance in distances(size)  # the last round completes the circle
    ]
