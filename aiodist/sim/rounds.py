"""A collective's messages, round by round, of all members at once. Pure.

Small groups *play* the very schedules that ranks run by: every send of every rank. For large groups those are
billions of steps, so where an algorithm has a round for each rank its rounds are made here as arrays, and
rounds that are alike are one, with a count: `cost` works them out. Tests compare the two for every algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from aiodist.backends.schedules import binomial, chain
from aiodist.backends.schedules.select import ALGORITHMS
from aiodist.backends.schedules.steps import Send
from aiodist.base.operations import ROLES
from aiodist.base.types import Kind
from aiodist.sim.network import Ints

PLAYED = 64
"""Ranks of a group up to which schedules are played step by step."""


@dataclass(frozen=True, slots=True, eq=False)
class SimRound:
    """Messages that may be on their way at once.

    Args:
        src, dst: group ranks of each message.
        start, stop: the chunks that it carries; they wrap, as in `schedules.steps`.
        times: so many rounds in a row are alike, but for which chunk goes.
    """

    src: Ints
    dst: Ints
    start: Ints
    stop: Ints
    times: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class SimPlan:
    """The messages of one algorithm.

    Args:
        name: of the algorithm.
        chunks: that the buffer is cut into.
        rounds: makes the rounds.
        two_buffers: chunk j of a rank is for rank j, and as large as those two have agreed.
        at_once: nobody waits from round to round: they are one, whose messages are too many for one array.
    """

    name: str
    chunks: int
    rounds: Callable[[], Iterable[SimRound]]
    two_buffers: bool = False
    at_once: bool = False

    def wide(self, width: int) -> SimPlan:
        """The rounds in several columns at once: member m of column c is m · width + c."""
        if width == 1:
            return self

        def rounds() -> Iterator[SimRound]:
            columns = np.arange(width)
            for one in self.rounds():
                src, dst = ((side[:, None] * width + columns).reshape(-1) for side in (one.src, one.dst))
                yield SimRound(src, dst, one.start.repeat(width), one.stop.repeat(width), one.times)

        return SimPlan(self.name, self.chunks, rounds, self.two_buffers, self.at_once)


@lru_cache(maxsize=256)
def plan(kind: Kind, name: str, size: int, root: int, played: int = PLAYED) -> SimPlan:
    """The messages of an algorithm.

    Args:
        kind: a collective; new_group is a barrier.
        name: of the algorithm (`schedules.select.algorithm`).
        size: of the group.
        root: group rank; any where there is none.
        played: ranks up to which its schedules are played.
    """
    if size > played and name in _WORKED_OUT:
        return _WORKED_OUT[name](kind, size, root if ROLES[kind].rooted else 0)
    return _from_schedules(kind, name, size, root)


def _from_schedules(kind: Kind, name: str, size: int, root: int) -> SimPlan:
    build = ALGORITHMS[kind][name].build
    found: list[list[tuple[int, int, int, int]]] = []
    chunks, two = 1, False
    for rank in range(size):
        one = build(rank, size, root)
        chunks, two = one.chunks, one.two_buffers
        found += [[] for _ in range(len(one.rounds) - len(found))]
        for number, steps in enumerate(one.rounds):
            found[number] += [
                (rank, step.peer, step.start, step.stop) for step in steps if isinstance(step, Send)
            ]
    made = [_round(messages) for messages in found if messages]
    return SimPlan(name, chunks, lambda: made, two)


def _round(messages: Sequence[tuple[int, int, int, int]]) -> SimRound:
    columns = np.array(messages, np.int64).T
    return SimRound(*columns)


# ── rounds of large groups ───────────────────────────────────────────────────────────────────────────


def _around(size: int, times: int, root: int = 0) -> SimRound:
    """Everybody sends one chunk to the next rank."""
    src = np.arange(size)
    return SimRound(src, (src + 1) % size, src, src + 1, times)


def _ring(kind: Kind, size: int, root: int) -> SimPlan:
    laps = 2 if kind is Kind.all_reduce else 1
    return SimPlan("ring", size, lambda: [_around(size, laps * (size - 1))])


def _ring_gather(kind: Kind, size: int, root: int) -> SimPlan:
    others = np.delete(np.arange(size), root)
    last = SimRound(others, np.full(size - 1, root), others, others + 1)
    return SimPlan("ring_gather", size, lambda: [_around(size, size - 1), last])


def _scatter_ring(kind: Kind, size: int, root: int) -> SimPlan:
    def rounds() -> Iterator[SimRound]:
        for steps in zip(*(binomial.scatter_rounds(me, size) for me in range(size)), strict=True):
            sends = [
                ((me + root) % size, (step.peer + root) % size, step.start, step.stop)
                for me, those in enumerate(steps)
                for step in those
                if isinstance(step, Send)
            ]
            if sends:
                yield _round(sends)
        me = np.arange(size)
        right = (me + 1) % size
        held = np.array([binomial.subtree(number, size) for number in range(size)])
        for number in range(size - 1):
            out = (me - number) % size
            wanted = (out < right) | (out >= right + held[right])
            yield SimRound(
                (me[wanted] + root) % size, (right[wanted] + root) % size, out[wanted], out[wanted] + 1
            )

    return SimPlan("scatter_ring", size, rounds)


def _chain(kind: Kind, size: int, root: int) -> SimPlan:
    def rounds() -> Iterator[SimRound]:
        for number in range(chain.CHUNKS + size - 2):
            me = np.arange(max(0, number - chain.CHUNKS + 1), min(size - 1, number + 1))
            out = number - me
            yield SimRound((me + root) % size, (me + 1 + root) % size, out, out + 1)

    return SimPlan("chain", chain.CHUNKS, rounds)


def _pairwise(kind: Kind, size: int, root: int) -> SimPlan:
    def rounds() -> Iterator[SimRound]:
        me = np.arange(size)
        for number in range(1, size):
            to = me ^ number if size & (size - 1) == 0 else (me + number) % size
            yield SimRound(me, to, to, to + 1)

    return SimPlan("pairwise", size, rounds, two_buffers=True)


def _spread(kind: Kind, size: int, root: int) -> SimPlan:
    return SimPlan("spread", size, _pairwise(kind, size, root).rounds, two_buffers=True, at_once=True)


_WORKED_OUT: dict[str, Callable[[Kind, int, int], SimPlan]] = {
    "ring": _ring,
    "ring_gather": _ring_gather,
    "scatter_ring": _scatter_ring,
    "chain": _chain,
    "pairwise": _pairwise,
    "spread": _spread,
}
