"""all_to_all: every rank has a chunk for every rank.

Both forms send each chunk straight from the input of one rank to the output of the other, so the chunks
may have any sizes, on which only the two ranks agree (uneven splits). Nothing is forwarded.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations
in MPICH", IJHPCA 19 (2005), the algorithms for long and for medium messages of the section on all-to-all.
"""

from __future__ import annotations

from aiodist.backends.schedules.linear import others
from aiodist.backends.schedules.steps import Recv, Rounds, Schedule, Send, schedule


def all_to_all(rank: int, size: int) -> Schedule:
    """Exchange with one peer a round: a partner to swap with where n is a power of two, else one to send to
    and one to receive from; any size.

    Buffers: the input and the output, in `size` chunks each, with chunk `rank` of the output already
    copied from the input. Rounds: n-1. Bytes sent by a rank: its input but for its own chunk.
    """
    swap = size & (size - 1) == 0
    rounds: Rounds = []
    for i in range(1, size):
        to, source = (rank ^ i, rank ^ i) if swap else ((rank + i) % size, (rank - i) % size)
        rounds.append((Send(to, to, to + 1), Recv(source, source, source + 1)))
    return schedule("pairwise", size, rounds, two_buffers=True)


def spread(rank: int, size: int) -> Schedule:
    """Send all messages at once; any size.

    Buffers: as for `all_to_all`. Rounds: 1. Bytes sent by a rank: its input but for its own chunk.
    """
    peers = others(rank, size)
    sends = tuple(Send(peer, peer, peer + 1) for peer in peers)
    receives = tuple(Recv(peer, peer, peer + 1) for peer in reversed(peers))
    return schedule("spread", size, [sends + receives] if size > 1 else [], two_buffers=True)
