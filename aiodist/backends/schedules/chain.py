"""The chain: each rank hands on to the next what it has just received, chunk by chunk.

Once the first chunk has reached the end all links are busy at the same time, so a long message takes little
more than one link needs for it, whatever the number of ranks.

Source: J. Pjesivac-Grbovic, T. Angskun, G. Bosilca, G. E. Fagg, E. Gabriel and J. J. Dongarra, "Performance
analysis of MPI collective operations", Cluster Computing 10 (2007), the pipelined chain.
"""

from __future__ import annotations

from aiodist.backends.schedules.steps import Recv, Rounds, Schedule, Send, Step, from_root, schedule

CHUNKS = 16
"""Chunks of a message. The last rank begins late by one for each rank before it."""


def broadcast(rank: int, size: int, root: int) -> Schedule:
    """Send the tensor along the chain that begins at the root; any size, any root.

    Buffer: the tensor, in `CHUNKS` chunks. Rounds: CHUNKS + n - 2. Bytes sent by a rank but the last: the
    tensor.
    """
    me = (rank - root) % size
    rounds: Rounds = []
    for i in range(CHUNKS + size - 2 if size > 1 else 0):
        steps: tuple[Step, ...] = ()
        if me < size - 1 and 0 <= (out := i - me) < CHUNKS:
            steps += (Send(me + 1, out, out + 1),)
        if me and 0 <= (into := i - me + 1) < CHUNKS:
            steps += (Recv(me - 1, into, into + 1),)
        rounds.append(steps)
    return schedule("chain", CHUNKS, from_root(rounds, root, size, chunks=False))
