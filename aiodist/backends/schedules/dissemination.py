"""The dissemination barrier: in round k every rank tells the rank 2^k further on.

Source: D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization", Int. J.
Parallel Programming 17 (1988).
"""

from __future__ import annotations

from aiodist.backends.schedules.steps import Recv, Rounds, Schedule, Send, distances, schedule


def barrier(rank: int, size: int) -> Schedule:
    """Let every rank know that every rank has come; any size.

    No buffer: the messages are empty. Rounds: ceil(log2 n). Messages sent by a rank: one a round.
    """
    rounds: Rounds = [
        (Send((rank + distance) % size, 0, 0), Recv((rank - distance) % size, 0, 0))
        for distance in distances(size)
    ]
    return schedule("dissemination", 1, rounds)
