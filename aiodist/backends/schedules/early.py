"""The earliest round in which a receive may be posted, so that a rank that is ahead sends at once, unasked.

A rank enters a round when its previous round is done. A receive of a later round may be posted before that if
whatever arrives meanwhile does no harm: if from then on no step touches its chunks before its own round does.
One exception: a Send of these chunks to the very rank that we receive them from. It sends its message of the
later round when its earlier rounds are done, so when it has all of ours. That is how a pair that halves and
doubles asks for the other half while it sends its own.
"""

from __future__ import annotations

from aiodist.backends.schedules.steps import Recv, RecvReduce, Schedule, Send, Step

AHEAD = 2
"""Rounds that a receive is posted ahead at most: enough for the next message to be under way while the last
one is reduced, without announcing everything at once."""


def posted_in(schedule: Schedule, number: int, step: Recv | RecvReduce) -> int:
    """The round, at most `number`, on whose entry a receive of round `number` may be posted."""
    chunks = schedule.chunks
    steps = schedule.rounds[number]
    if not schedule.two_buffers and any(
        isinstance(other, Send) and _overlap(other, step, chunks) for other in steps
    ):
        return number  # what is sent is copied when its round begins, before anything is written
    first = number
    while first > max(0, number - AHEAD) and not any(
        _in_the_way(other, step, schedule) for other in schedule.rounds[first - 1]
    ):
        first -= 1
    return first


def _in_the_way(earlier: Step, step: Recv | RecvReduce, schedule: Schedule) -> bool:
    if isinstance(earlier, Send) and (schedule.two_buffers or earlier.peer == step.peer):
        return False
    return _overlap(earlier, step, schedule.chunks)


def _overlap(a: Step, b: Step, chunks: int) -> bool:
    """Whether two ranges, which may wrap, have a chunk in common."""
    return (b.start - a.start) % chunks < a.stop - a.start or (a.start - b.start) % chunks < b.stop - b.start
