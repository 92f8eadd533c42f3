"""How far neighbours' clocks are apart, from the times that their pings carry. Pure.

A ping bears the time at which it was sent, and of the last ping that came the other way the time at which
that was sent and the time at which it came, each on the clock of the process that did it. So a process has,
again and again, the four times of a question and its answer: sent (t1) here, received (t2) and answered (t3)
there, received (t4) here. Nothing arrives before it was sent: so the other clock is ahead of this one by
t3 - t4 at least, at t4, and by t2 - t1 at most, at t1. The middle of the two is the offset
((t2 - t1) + (t3 - t4)) / 2, and half of their distance, which is half of the round trip, its error. That
holds however unlike the two ways are.

The tightest of all such bounds count. Each is loosened by `RATE` as time passes, since clocks drift. A line
through the offsets of the last `HISTORY` seconds tells the drift; its error is its distance from the ends of
all these intervals, at most.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from aiodist.base.errors import WireError
from aiodist.group.control.messages import PING

RATE = 200e-6
"""Seconds by which two clocks drift apart in a second, at most: two quartzes do 100e-6, and what keeps the
time of day right changes that."""

HISTORY = 600.0
"""Seconds for which offsets are kept."""

_OFFSETS = 64  # that are kept, of one neighbour
_FIRST_STEP = 1.0  # seconds from one of them to the next, until there are so many
_LONG = 10.0  # seconds without which no drift can be told

_STAMP = struct.Struct("<ddd")


class Stamp(NamedTuple):
    """The times of a ping.

    Args:
        sent: when it was sent.
        echo: when the last ping the other way was sent, as it said; 0.0: none came.
        came: when that one came.
    """

    sent: float
    echo: float
    came: float

    def ping(self) -> bytes:
        """A ping that bears them."""
        return PING + _STAMP.pack(*self)


def stamp_of(ping: bytes) -> Stamp | None:
    """The times of a ping; None: it bears none.

    Raises:
        WireError: it bears something else.
    """
    if len(ping) == len(PING):
        return None
    if len(ping) != len(PING) + _STAMP.size:
        raise WireError(f"a ping of {len(ping)} bytes")
    stamp = Stamp(*_STAMP.unpack_from(ping, len(PING)))
    if not all(0.0 <= time < _LATEST for time in stamp):  # NaN is no time, either
        raise WireError("a ping with times that are none")
    return stamp


_LATEST = 1e12  # seconds; the clocks of a host begin when it starts


class Offset(NamedTuple):
    """What is known of a clock: seconds by which it is ahead, give or take `error`, at a time of this one;
    and the seconds by which that grows in a second."""

    seconds: float
    drift: float
    error: float
    at: float


class Neighbour:
    """The clock of one neighbour, seen from this process's."""

    def __init__(self) -> None:
        self.heard = (0.0, 0.0)  # when its last ping was sent, by its clock, and came, by this
        self._least = (-math.inf, 0.0)  # seconds by which it is ahead, at least, and when that was so
        self._most = (math.inf, 0.0)
        self._known: deque[Offset] = deque()
        self._step = _FIRST_STEP

    def take(self, stamp: Stamp, now: float) -> None:
        """Take the times of a ping that came now."""
        self.heard = (stamp.sent, now)
        self._at_least(stamp.sent - now, now)
        if 0.0 < stamp.echo <= now:
            self._at_most(stamp.came - stamp.echo, stamp.echo)
        known = self._known
        found = self._now(now)
        if found is not None and (not known or now >= known[-1].at + self._step):
            known.append(found)
            while known[0].at < now - HISTORY:
                known.popleft()
            if len(known) > _OFFSETS:
                self._known = deque(list(known)[::2])
                self._step = min(2 * self._step, HISTORY / _OFFSETS)

    def offset(self, now: float) -> Offset | None:
        """What is known; None: nothing."""
        found = self._now(now)
        if found is None:
            return None
        known = [*self._known, found]
        drift = _slope(known) if now - known[0].at >= _LONG else 0.0
        error = max(abs(found.seconds + drift * (one.at - now) - one.seconds) + one.error for one in known)
        return Offset(found.seconds, drift, error, now)

    def _now(self, now: float) -> Offset | None:
        (least, since), (most, until) = self._least, self._most
        low, high = least - RATE * (now - since), most + RATE * (now - until)
        if not math.isfinite(low) or not math.isfinite(high):
            return None
        return Offset((low + high) / 2, 0.0, (high - low) / 2, now)

    def _at_least(self, seconds: float, at: float) -> None:
        least, since = self._least
        if seconds >= least - RATE * (at - since):
            self._least = (seconds, at)
        self._begin_anew_if_broken()

    def _at_most(self, seconds: float, at: float) -> None:
        most, since = self._most
        if seconds <= most + RATE * (at - since):
            self._most = (seconds, at)
        self._begin_anew_if_broken()

    def _begin_anew_if_broken(self) -> None:
        """Forget all where the bounds exclude each other: a host has slept, or says what is not so."""
        (least, since), (most, until) = self._least, self._most
        if least - most > RATE * abs(since - until):
            self._least, self._most = (-math.inf, 0.0), (math.inf, 0.0)
            self._known.clear()
            self._step = _FIRST_STEP


class Clocks:
    """The clocks of all neighbours.

    Args:
        clock: this process's, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._neighbours: dict[int, Neighbour] = {}

    def ping(self, rank: int) -> bytes:
        """A ping to a neighbour, to be sent now."""
        known = self._neighbours.get(rank)
        return Stamp(self._clock(), *(known.heard if known is not None else (0.0, 0.0))).ping()

    def take(self, rank: int, stamp: Stamp) -> None:
        """Take the times of a neighbour's ping that has just come."""
        self._neighbours.setdefault(rank, Neighbour()).take(stamp, self._clock())

    def known(self) -> list[tuple[int, Offset]]:
        """What is known of each neighbour's clock."""
        now = self._clock()
        found = ((rank, neighbour.offset(now)) for rank, neighbour in self._neighbours.items())
        return [(rank, offset) for rank, offset in found if offset is not None]


def _slope(known: list[Offset]) -> float:
    """The slope of the line through offsets, those with a small error counting more (least squares)."""
    weights = [1 / (one.error + 1e-6) ** 2 for one in known]
    pairs = list(zip(weights, known, strict=True))
    at = sum(weight * one.at for weight, one in pairs) / sum(weights)
    mean = sum(weight * one.seconds for weight, one in pairs) / sum(weights)
    spread = sum(weight * (one.at - at) ** 2 for weight, one in pairs)
    rise = sum(weight * (one.at - at) * (one.seconds - mean) for weight, one in pairs)
    return max(-RATE, min(RATE, rise / spread)) if spread else 0.0
