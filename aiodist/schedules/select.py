"""Which algorithm an operation takes.

The choice is a pure function of what every rank agrees on: kind, size, root and bytes (law 3). Ranks
that chose differently would wait for each other for ever.

For all_reduce the choice is the cheapest under the usual model, time = rounds · α + bytes · β. α is a
round through two event loops, β the time a byte needs on the wire. Both are constants of the package, of
the order that TCP over loopback shows. They are not measured at run time: ranks would measure differently.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from aiodist.errors import UsageError
from aiodist.schedules import binomial, dissemination, recursive, ring
from aiodist.schedules.steps import Schedule
from aiodist.types import NO_ROOT, Kind

ROUND_NS = 30_000.0  # α
BYTE_NS = 0.4  # β: 2.5 GB/s
DOUBLING_LIMIT = 64 * 1024  # bytes; recursive doubling copies what it sends, so it stays small

ALL_REDUCE: dict[str, Callable[[int, int], Schedule]] = {
    "recursive_doubling": recursive.doubling,
    "recursive_halving": recursive.halving,
    "ring": ring.all_reduce,
}


def all_reduce_cost(algorithm: str, size: int) -> tuple[int, float]:
    """Rounds of an all_reduce algorithm, and the tensors' worth of bytes on its critical path."""
    count = recursive.participants(size)
    extra = 0 if count == size else 2  # fold and unfold: a round and a tensor each
    levels = count.bit_length() - 1
    if algorithm == "recursive_doubling":
        return levels + extra, float(levels + extra)
    if algorithm == "recursive_halving":
        return 2 * levels + extra, 2 * (count - 1) / count + extra
    return 2 * (size - 1), 2 * (size - 1) / size


@lru_cache(maxsize=4096)
def all_reduce_algorithm(size: int, nbytes: int) -> str:
    """The name of the algorithm that an all_reduce of `nbytes` takes on `size` ranks."""

    def cost(algorithm: str) -> float:
        rounds, tensors = all_reduce_cost(algorithm, size)
        return rounds * ROUND_NS + tensors * nbytes * BYTE_NS

    candidates = [name for name in ALL_REDUCE if name != "recursive_doubling" or nbytes <= DOUBLING_LIMIT]
    return min(candidates, key=cost)


def select(kind: Kind, rank: int, size: int, root: int = NO_ROOT, nbytes: int = 0) -> Schedule:
    """One rank's schedule for an operation. Pure and cached.

    Args:
        kind: a collective.
        rank: this process's rank in the group.
        size: of the group. A group of one gets a schedule without rounds.
        root: group rank, for broadcast and reduce.
        nbytes: of the operation's buffer (all_gather: the result; reduce_scatter: the input).

    Raises:
        UsageError: no schedule exists for this kind (send and recv are one message each).
    """
    if kind is Kind.all_reduce:
        return _build(kind, rank, size, NO_ROOT, all_reduce_algorithm(size, nbytes))
    return _build(kind, rank, size, root, "")


@lru_cache(maxsize=4096)
def _build(kind: Kind, rank: int, size: int, root: int, algorithm: str) -> Schedule:
    match kind:
        case Kind.all_reduce:
            return ALL_REDUCE[algorithm](rank, size)
        case Kind.broadcast:
            return binomial.broadcast(rank, size, root)
        case Kind.reduce:
            return binomial.reduce(rank, size, root)
        case Kind.all_gather:
            return ring.all_gather(rank, size)
        case Kind.reduce_scatter:
            return ring.reduce_scatter(rank, size)
        case Kind.barrier | Kind.new_group:
            return dissemination.barrier(rank, size)
        case _:
            raise UsageError(f"{kind.name} has no schedule", hint="Point-to-point is a single message")
