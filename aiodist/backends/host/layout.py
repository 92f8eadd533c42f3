"""A schedule laid over a buffer: which bytes each step sends and receives, and when each receive is posted.

It follows from the kind of operation and the buffer alone. So it is computed once, and used again when the
same operation is issued again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aiodist.backends.arrays.kernels import INLINE_NS, cost_ns
from aiodist.backends.schedules.early import posted_in
from aiodist.backends.schedules.steps import Recv, RecvReduce, Schedule, Send, Step, spans
from aiodist.base.types import ReduceOp
from aiodist.transport.base import FRAGMENT

Range = tuple[int, int]

POLLED = 4
"""Peers of a round at most, for an await to poll its channels: a look at each takes 1.5 µs."""


IN_STEP = 256 << 10
"""Bytes of a part of an all_to_all from which on nobody asks for it before its round: a peer that is
ahead would send it beside the part of the round before, on the same cable, and who waits for that is late."""


class Sending:
    """A Send: byte ranges of the buffer, one or, where the chunks wrap around the end, two."""

    __slots__ = ("copy", "peer", "ranges")

    def __init__(self, step: Send, ranges: list[Range]) -> None:
        self.peer = step.peer
        self.ranges = ranges
        self.copy = step.copy or len(ranges) > 1


class Receiving:
    """A Recv or RecvReduce.

    Attributes:
        number: its round.
        ranges: bytes, as for `Sending`.
        nbytes: all of them.
        reduces: whether what comes is combined with what is there.
        left: as the left operand.
        slow: the reduction would hold the loop: it is done in a thread when all is here.
    """

    __slots__ = ("left", "nbytes", "number", "peer", "ranges", "reduces", "slow")

    def __init__(self, step: Recv | RecvReduce, number: int, ranges: list[Range]) -> None:
        self.peer = step.peer
        self.number = number
        self.ranges = ranges
        self.nbytes = sum(high - low for low, high in ranges)
        self.reduces = isinstance(step, RecvReduce)
        self.left = isinstance(step, RecvReduce) and step.left
        self.slow = False


class Layout:
    """The rounds of one rank.

    Args:
        schedule: the algorithm.
        bounds: where each chunk begins, in elements; of what is received.
        sent_bounds: of what is sent, which differ where there are two buffers.
        dtype: of the buffer.
        reduce: the operation's.
        heard: the round after which the rank knows that all have come for whom it waits.

    Attributes:
        rounds: for each round its sends, and the receives that are posted when it is entered.
        due: for each round the number of its own receives.
        sources: for each round whom it receives from, if they are few enough to be polled.
    """

    __slots__ = ("_expected", "_receives", "due", "heard", "rounds", "sources")

    def __init__(
        self,
        schedule: Schedule,
        bounds: list[int],
        sent_bounds: list[int],
        dtype: np.dtype[Any],
        reduce: ReduceOp | None,
        heard: int,
    ) -> None:
        self.heard = heard
        itemsize, chunks = dtype.itemsize, schedule.chunks

        def ranges(step: Step, bounds: list[int]) -> list[Range]:
            parts = spans(step.start, step.stop, chunks)
            return [(bounds[start] * itemsize, bounds[stop] * itemsize) for start, stop in parts]

        self.rounds: list[tuple[list[Sending], list[Receiving]]] = [([], []) for _ in schedule.rounds]
        self.due = [0] * len(schedule.rounds)
        self.sources: list[list[int]] = [[] for _ in schedule.rounds]
        self._receives: list[Receiving] = []
        self._expected: dict[tuple[int, int], int] | None = None
        for number, steps in enumerate(schedule.rounds):
            for step in steps:
                if isinstance(step, Send):
                    self.rounds[number][0].append(Sending(step, ranges(step, sent_bounds)))
                    continue
                receiving = Receiving(step, number, ranges(step, bounds))
                if receiving.reduces:
                    assert reduce is not None
                    fragment = min(receiving.nbytes, FRAGMENT)
                    receiving.slow = cost_ns(fragment, dtype, reduce) > INLINE_NS
                own_memory = receiving.slow or len(receiving.ranges) > 1
                in_step = schedule.two_buffers and receiving.nbytes >= IN_STEP
                first = number if own_memory or in_step else posted_in(schedule, number, step)
                self.rounds[first][1].append(receiving)
                self.due[number] += 1
                self.sources[number].append(step.peer)
                self._receives.append(receiving)

            if len(self.sources[number]) > POLLED:
                self.sources[number] = []

    def expected(self, peer: int, number: int) -> int | None:
        """Bytes of the message from `peer` in round `number`; None if there is none."""
        if self._expected is None:
            self._expected = {(one.peer, one.number): one.nbytes for one in self._receives}
        return self._expected.get((peer, number))
