"""All ranks on one clock: from what neighbours found out about each other's clocks. Pure.

Ranks whose processes read the same clock need no shift. Between clocks there are pairs of ranks that have
measured how far they are apart (`control.clocks`); from each clock that path of pairs to the reference is
taken whose errors have the least sum. The reference is the clock of the lowest rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from aiodist.observe.view import JobView, RankView

UNKNOWN = 1e9
"""Seconds that stand for an error which nobody knows: a number, so that it can be written as JSON."""


@dataclass(frozen=True, slots=True)
class Shift:
    """From one clock to another: `t` there is `t + seconds + drift * (t - at)` here, give or take `error`."""

    at: float = 0.0
    seconds: float = 0.0
    drift: float = 0.0
    error: float = 0.0

    def __call__(self, time: float) -> float:
        return time + self.seconds + self.drift * (time - self.at)

    def then(self, other: Shift) -> Shift:
        """This one, and another after it."""
        drift = (1 + self.drift) * (1 + other.drift) - 1
        return Shift(self.at, other(self(self.at)) - self.at, drift, self.error + other.error)

    def back(self) -> Shift:
        """The way back."""
        return Shift(self(self.at), -self.seconds, 1 / (1 + self.drift) - 1, self.error)


@dataclass(frozen=True, slots=True)
class ClockPair:
    """Two clocks, and how to get from the first one's time to the second one's."""

    one: Hashable
    other: Hashable
    shift: Shift


def align(reference: Hashable, pairs: Iterable[ClockPair]) -> dict[Hashable, Shift]:
    """The shift from each clock that a path leads to, to the reference: that with the least error."""
    ways: dict[Hashable, list[tuple[Hashable, Shift]]] = {}
    for pair in pairs:
        ways.setdefault(pair.other, []).append((pair.one, pair.shift))
        ways.setdefault(pair.one, []).append((pair.other, pair.shift.back()))
    found: dict[Hashable, Shift] = {}
    open_ends: list[tuple[float, int, Hashable, Shift]] = [(0.0, 0, reference, Shift())]
    count = 0  # of ends, so that clocks are never compared
    while open_ends:
        _, _, clock, shift = heapq.heappop(open_ends)
        if clock in found:
            continue
        found[clock] = shift
        for beyond, step in ways.get(clock, ()):
            if beyond not in found:
                count += 1
                whole = step.then(shift)
                heapq.heappush(open_ends, (whole.error, count, beyond, whole))
    return found


def clock_of(rank: RankView) -> Hashable:
    """The name of the clock that a rank reads; where it tells none, it shares it with nobody."""
    told = rank.recording.about.get("clock")
    return told if isinstance(told, str) else rank.identity  # processes of two containers may have one id


def place(job: JobView) -> JobView:
    """The job with what is known of each rank's clock, relative to that of its lowest rank.

    A rank that no path leads to has the error `UNKNOWN`, and is shifted by what the times of day say.
    """
    if not job.ranks:
        return job
    clocks = {rank.rank: clock_of(rank) for rank in job.ranks}
    shifts = align(clocks[job.ranks[0].rank], _pairs(job, clocks))
    first = job.ranks[0].recording
    placed = []
    for rank in job.ranks:
        shift = shifts.get(clocks[rank.rank])
        if shift is None:
            shift = Shift(seconds=rank.recording.offset - first.offset, error=UNKNOWN)
        placed.append(rank.placed(shift(rank.now) - rank.now, shift.error, shift.drift))
    return JobView(job.key, tuple(placed))


def _pairs(job: JobView, clocks: Mapping[int, Hashable]) -> Iterable[ClockPair]:
    for rank in job.ranks:
        for seen in rank.recording.clocks:
            other = clocks.get(seen.rank)
            if other is not None and other != clocks[rank.rank]:
                shift = Shift(seen.at, seen.offset, seen.drift, seen.error)
                yield ClockPair(clocks[rank.rank], other, shift)
