"""Links between ranks: a chordal ring, so that every rank is few hops from every other. Pure.

Rank r is linked to r ± 2^k (mod n). A rank has about 2·log2(n) links and any rank is reached in at most
log2(n) hops, so that a failure floods a thousand ranks in ten steps while none holds more than twenty
links. Up to eight ranks all are linked with all.

Source: the finger table of Chord (Stoica et al., 2001), made symmetric.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

FULL_MESH = 8


@lru_cache(maxsize=4096)
def neighbours(rank: int, size: int) -> tuple[int, ...]:
    """The ranks that `rank` holds a link with, in ascending order."""
    if size <= FULL_MESH:
        return tuple(r for r in range(size) if r != rank)
    found = set()
    step = 1
    while step < size:
        found.add((rank + step) % size)
        found.add((rank - step) % size)
        step *= 2
    found.discard(rank)
    return tuple(sorted(found))


def next_hop(rank: int, target: int, size: int, gone: Collection[int] = ()) -> int | None:
    """The neighbour to hand a message for `target` to; None where no living neighbour is nearer to it than
    `rank` is.

    Greedy: the living neighbour nearest to the target around the ring. Every hop comes nearer, so none leads
    back; without losses each at least halves the distance.
    """
    best: int | None = None
    ahead = (target - rank) % size
    best_distance = min(ahead, size - ahead)
    for neighbour in neighbours(rank, size):
        if neighbour in gone:
            continue
        ahead = (target - neighbour) % size
        distance = min(ahead, size - ahead)
        if distance < best_distance:
            best, best_distance = neighbour, distance
    return best
