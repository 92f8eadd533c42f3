"""The choice of the algorithm that an operation takes.

The choice is a pure function of what every rank agrees on: kind, size, root and bytes (law 3). Ranks
that chose differently would wait for each other for ever. Of the algorithms that are offered for an
operation the cheapest is taken, by the model and the constants of `costs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from aiodist.backends.schedules import (
    binomial,
    bruck,
    chain,
    composed,
    costs,
    dissemination,
    linear,
    pairwise,
    recursive,
    ring,
)
from aiodist.backends.schedules.costs import DOUBLING_LIMIT, RING_CHUNK, SPREAD_LIMIT, WRAP_LIMIT, Cost
from aiodist.backends.schedules.hearing import heard_in, last_received
from aiodist.backends.schedules.steps import Schedule
from aiodist.base.errors import UsageError
from aiodist.base.operations import ROLES
from aiodist.base.types import NO_ROOT, Kind

UNKNOWN = -1
"""The `nbytes` of which ranks do not agree (uneven all_to_all). What is right for many is chosen."""

FEW = 16
"""Ranks of a group for which `heard` looks at the schedules of all."""

_MANY = 1 << 50


def _always(size: int, nbytes: int) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to carry out a kind of operation.

    Args:
        build: (rank, size, root) → schedule.
        cost: size → what it takes.
        offered: (size, nbytes) → whether it may be chosen.
    """

    build: Callable[[int, int, int], Schedule]
    cost: Callable[[int], Cost]
    offered: Callable[[int, int], bool] = _always


def _rootless(build: Callable[[int, int], Schedule]) -> Callable[[int, int, int], Schedule]:
    return lambda rank, size, root: build(rank, size)


def _power_of_two(size: int, nbytes: int) -> bool:
    return size & (size - 1) == 0


def _may_wrap(size: int, nbytes: int) -> bool:
    return nbytes <= WRAP_LIMIT


def _short_power_of_two(size: int, nbytes: int) -> bool:
    return nbytes < size * RING_CHUNK and _power_of_two(size, nbytes)


def _short_may_wrap(size: int, nbytes: int) -> bool:
    return nbytes < size * RING_CHUNK and _may_wrap(size, nbytes)


# Where two cost the same, the one that stands first is taken.
ALGORITHMS: dict[Kind, dict[str, Algorithm]] = {
    Kind.all_reduce: {
        "recursive_doubling": Algorithm(
            _rootless(recursive.doubling),
            costs.all_reduce_doubling,
            lambda size, nbytes: nbytes <= DOUBLING_LIMIT,
        ),
        "recursive_halving": Algorithm(_rootless(recursive.halving), costs.all_reduce_halving),
        "ring": Algorithm(_rootless(ring.all_reduce), lambda size: costs.twice(costs.ring(size))),
        "bruck": Algorithm(
            _rootless(bruck.all_reduce), lambda size: costs.twice(costs.bruck(size)), _may_wrap
        ),
    },
    Kind.broadcast: {
        "binomial": Algorithm(binomial.broadcast, costs.binomial),
        "scatter_ring": Algorithm(composed.broadcast, costs.scatter_ring),
        "chain": Algorithm(chain.broadcast, costs.chain),
    },
    Kind.reduce: {
        "binomial": Algorithm(binomial.reduce, costs.binomial),
        "halving_gather": Algorithm(
            composed.halving_reduce, lambda size: costs.twice(costs.halving(size)), _power_of_two
        ),
        "ring_gather": Algorithm(composed.ring_reduce, costs.ring_gather),
    },
    Kind.all_gather: {
        "ring": Algorithm(_rootless(ring.all_gather), costs.ring),
        "recursive_doubling": Algorithm(_rootless(recursive.all_gather), costs.halving, _short_power_of_two),
        "bruck": Algorithm(_rootless(bruck.all_gather), costs.bruck, _short_may_wrap),
    },
    Kind.reduce_scatter: {
        "ring": Algorithm(_rootless(ring.reduce_scatter), costs.ring),
        "recursive_halving": Algorithm(
            _rootless(recursive.reduce_scatter), costs.halving, _short_power_of_two
        ),
        "bruck": Algorithm(_rootless(bruck.reduce_scatter), costs.bruck, _short_may_wrap),
    },
    Kind.gather: {
        "linear": Algorithm(linear.gather, costs.linear),
        "binomial": Algorithm(binomial.gather, costs.binomial_chunks, _may_wrap),
    },
    Kind.scatter: {
        "linear": Algorithm(linear.scatter, costs.linear),
        "binomial": Algorithm(binomial.scatter, costs.binomial_chunks, _may_wrap),
    },
    Kind.all_to_all: {
        "pairwise": Algorithm(_rootless(pairwise.all_to_all), costs.ring),
        "spread": Algorithm(
            _rootless(pairwise.spread), costs.linear, lambda size, nbytes: nbytes <= SPREAD_LIMIT
        ),
    },
    Kind.barrier: {"dissemination": Algorithm(_rootless(dissemination.barrier), costs.barrier)},
}
ALGORITHMS[Kind.new_group] = ALGORITHMS[Kind.barrier]


@lru_cache(maxsize=4096)
def algorithm(kind: Kind, size: int, nbytes: int) -> str:
    """The name of the algorithm that an operation takes; arguments as for `select`."""
    if nbytes < 0:
        nbytes = _MANY
    offered = [name for name, one in ALGORITHMS[kind].items() if one.offered(size, nbytes)]
    return min(offered, key=lambda name: ALGORITHMS[kind][name].cost(size).ns(nbytes))


def select(kind: Kind, rank: int, size: int, root: int = NO_ROOT, nbytes: int = 0) -> Schedule:
    """One rank's schedule for an operation. Pure and cached.

    Args:
        kind: a collective.
        rank: this process's rank in the group.
        size: of the group. A group of one gets a schedule without rounds, or with empty ones.
        root: group rank, for broadcast, reduce, gather and scatter.
        nbytes: of the operation's buffer, as all ranks agree on it: of the tensor for all_reduce, broadcast
            and reduce; of all ranks' chunks together for all_gather, reduce_scatter, gather and scatter; of
            a rank's whole input for all_to_all. `UNKNOWN` where ranks do not agree.

    Raises:
        UsageError: no schedule exists for this kind (send and recv are one message each).
    """
    if kind not in ALGORITHMS:
        raise UsageError(f"{kind.name} has no schedule", hint="Point-to-point is a single message")
    return _build(kind, algorithm(kind, size, nbytes), rank, size, root if ROLES[kind].rooted else NO_ROOT)


def heard(kind: Kind, rank: int, size: int, root: int = NO_ROOT, nbytes: int = 0) -> int:
    """The round after which a rank knows that all have come for whom it waits; arguments as for `select`.

    Of groups that are larger than `FEW` it is the last round in which the rank receives, since to know better
    takes the schedules of all ranks.
    """
    return _heard(kind, algorithm(kind, size, nbytes), rank, size, root if ROLES[kind].rooted else NO_ROOT)


@lru_cache(maxsize=4096)
def _heard(kind: Kind, name: str, rank: int, size: int, root: int) -> int:
    if size > FEW:
        return last_received(_build(kind, name, rank, size, root))
    return heard_in([_build(kind, name, one, size, root) for one in range(size)], rank)


@lru_cache(maxsize=4096)
def _build(kind: Kind, name: str, rank: int, size: int, root: int) -> Schedule:
    return ALGORITHMS[kind][name].build(rank, size, root)
