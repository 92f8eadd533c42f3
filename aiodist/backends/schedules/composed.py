"""Rooted operations on large messages: the tensor is cut into a chunk a rank, so that all ranks work.

Ranks and chunks are counted from the root on; so nothing wraps.

Source: M. Barnett, L. Shuler, S. Gupta, D. Payne, R. van de Geijn and J. Watts, "Building a
High-Performance Collective Communication Library", Supercomputing '94, for broadcast; J. Zhou, V.
Marjanovic, C. Niethammer and J. Gracia, "A Bandwidth-saving Optimization for MPI Broadcast Collective
Operation", arXiv:1603.06809 (2016), for the messages it leaves out; R. Rabenseifner, "Optimization of
Collective Reduction Operations", ICCS 2004, for reduce.
"""

from __future__ import annotations

from aiodist.backends.schedules import binomial, recursive, ring
from aiodist.backends.schedules.linear import others
from aiodist.backends.schedules.steps import Recv, Rounds, Schedule, Send, Step, from_root, schedule


def broadcast(rank: int, size: int, root: int) -> Schedule:
    """Van de Geijn's algorithm: scatter down a binomial tree, all-gather around the ring; any size, any
    root. A rank of the tree has its subtree's chunks already, and the ring does not bring them again.

    Buffer: the tensor, in `size` chunks; the root's is only read. Rounds: ceil(log2 n) + n-1. Bytes sent:
    by the root 2(n-1)/n of the tensor; over the critical path 2(n-1)/n.
    """
    me = (rank - root) % size
    right = (me + 1) % size

    def has(number: int, chunk: int) -> bool:
        return number <= chunk < number + binomial.subtree(number, size)

    rounds = binomial.scatter_rounds(me, size)
    for i in range(size - 1):
        out, into = (me - i) % size, (me - 1 - i) % size
        steps: list[Step] = []
        if not has(right, out):
            steps.append(Send(right, out, out + 1))
        if not has(me, into):
            steps.append(Recv((me - 1) % size, into, into + 1))
        rounds.append(tuple(steps))
    return schedule("scatter_ring", size, from_root(rounds, root, size, chunks=False))


def ring_reduce(rank: int, size: int, root: int) -> Schedule:
    """Reduce-scatter around the ring, then send every chunk to the root; any size, any root.

    Buffer: the tensor, in `size` chunks; a working copy, since partials pass through it.
    Rounds: n. Bytes sent: one tensor by every rank, (n-1)/n by the root; over the critical path 2(n-1)/n.
    """
    me = (rank - root) % size
    rounds = ring.reduce_rounds(me, size)
    if size > 1:
        last: tuple[Step, ...] = (Send(0, me, me + 1),)
        rounds.append(last if me else tuple(Recv(peer, peer, peer + 1) for peer in others(0, size)))
    return schedule("ring_gather", size, from_root(rounds, root, size, chunks=False))


def halving_reduce(rank: int, size: int, root: int) -> Schedule:
    """Rabenseifner's algorithm: reduce-scatter by recursive halving, then gather up a binomial tree;
    powers of two only, any root.

    Buffer: the tensor, in `size` chunks; a working copy, since partials pass through it.
    Rounds: 2 log2 n. Bytes sent: by a rank (n-1)/n of the tensor, and but for the root its subtree's
    chunks, at most a half; over the critical path 2(n-1)/n.
    """
    me = (rank - root) % size
    rounds: Rounds = recursive.reduce_scatter_rounds(me, size) + binomial.gather_rounds(me, size)
    return schedule("halving_gather", size, from_root(rounds, root, size, chunks=False))
