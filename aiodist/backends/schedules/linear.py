"""Linear algorithms: the root deals with every rank itself, all at once.

Every byte travels once, straight to its place, and no rank needs memory for others. The root handles
n-1 messages: for few ranks, or for large messages.

Source: E. Chan, M. Heimlich, A. Purkayastha and R. van de Geijn, "Collective communication: theory,
practice, and experience", Concurrency and Computation: Practice and Experience 19 (2007).
"""

from __future__ import annotations

from aiodist.backends.schedules.steps import Recv, Schedule, Send, Step, schedule


def gather(rank: int, size: int, root: int) -> Schedule:
    """Send all chunks straight to the root; any size, any root.

    Buffer: the result, in `size` chunks, with this rank's input already in chunk `rank`; a rank but the
    root touches no other chunk. Rounds: 1. Bytes sent: one chunk by every rank but the root, which
    receives (n-1)/n of the buffer.
    """
    steps: tuple[Step, ...] = (Send(root, rank, rank + 1),)
    if rank == root:
        steps = tuple(Recv(peer, peer, peer + 1) for peer in others(rank, size))
    return schedule("linear", size, [steps] if size > 1 else [])


def scatter(rank: int, size: int, root: int) -> Schedule:
    """Send every rank its chunk straight from the root; any size, any root.

    Buffer: on the root the input, in `size` chunks; on the others memory for it, of which they touch
    chunk `rank` only, which is the result. Rounds: 1. Bytes sent: by the root (n-1)/n of the buffer, by
    the others none.
    """
    steps: tuple[Step, ...] = (Recv(root, rank, rank + 1),)
    if rank == root:
        steps = tuple(Send(peer, peer, peer + 1) for peer in others(rank, size))
    return schedule("linear", size, [steps] if size > 1 else [])


def others(rank: int, size: int) -> list[int]:
    """All other ranks, from the right neighbour on, so that ranks do not all begin with the same one."""
    return [(rank + offset) % size for offset in range(1, size)]
