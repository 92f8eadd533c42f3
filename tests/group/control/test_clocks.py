"""Offsets of clocks: the truth lies within the stated error, whatever the delays and the drift."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.group.control.clocks import HISTORY, RATE, Clocks, Neighbour, Offset, Stamp, stamp_of
from aiodist.group.control.messages import PING

SEEDS = st.integers(0, 2**32)


class Pair:
    """Two processes that ping each other, with clocks that are apart.

    Args:
        ahead: seconds by which the second one's clock is ahead, at 0.
        drift: seconds by which that grows in a second.
        delays: seconds that a ping takes there, and back.
    """

    def __init__(self, ahead: float, drift: float, delays: tuple[Callable[[], float], ...]) -> None:
        self.ahead, self.drift, self.delays = ahead, drift, delays
        self.one, self.other = Neighbour(), Neighbour()  # as the first sees the second, and the other way

    def of_other(self, time: float) -> float:
        """The second one's time."""
        return time + self.ahead + self.drift * time

    def ping(self, time: float) -> float:
        """The first pings the second at a time of its own → when that came."""
        came = time + self.delays[0]()
        self.other.take(Stamp(time, *self.one.heard), self.of_other(came))
        return came

    def pong(self, time: float) -> float:
        """The second pings the first."""
        came = time + self.delays[1]()
        self.one.take(Stamp(self.of_other(time), *self.other.heard), came)
        return came

    def run(self, start: float, seconds: float, every: float = 0.25) -> float:
        """Have them ping each other → the time when that is over."""
        time = start
        while time < start + seconds:
            self.ping(time)
            time = self.pong(time + every / 2) + every / 2
        return time

    def wrong(self, offset: Offset, time: float) -> float:
        """By how much an offset of the first one is wrong, at a time of its clock."""
        said = offset.seconds + offset.drift * (time - offset.at)
        return abs(said - (self.of_other(time) - time))


def delays(rng: random.Random, most: float, tail: float) -> Callable[[], float]:
    """Delays that are usually short, and sometimes very long."""
    least = rng.uniform(0.0, most)
    return lambda: least + (rng.expovariate(1 / tail) if rng.random() < 0.5 else 0.0)


def a_pair(seed: int, drift: float) -> Pair:
    rng = random.Random(seed)
    ways = delays(rng, 0.01, 0.001), delays(rng, 0.01, 0.05)
    return Pair(rng.uniform(-900.0, 1e6), drift, ways)


@given(SEEDS, st.floats(-RATE, RATE), st.floats(5.0, 60.0))
def test_the_truth_lies_within_the_error(seed: int, drift: float, seconds: float) -> None:
    pair = a_pair(seed, drift * 0.99)
    time = pair.run(1000.0, seconds)
    offset = pair.one.offset(time)
    assert offset is not None
    assert pair.wrong(offset, time) <= offset.error + 1e-6
    back = pair.other.offset(pair.of_other(time))
    assert back is not None
    assert abs(back.seconds + (pair.of_other(time) - time)) <= back.error + 1e-6


@given(SEEDS, st.floats(-RATE, RATE))
def test_it_lies_there_since_the_first_ping(seed: int, drift: float) -> None:
    pair = a_pair(seed, drift * 0.99)
    time = pair.run(1000.0, 45.0)
    offset = pair.one.offset(time)
    assert offset is not None
    for before in range(1002, 1045):
        assert pair.wrong(offset, before) <= offset.error + 1e-6


def test_a_symmetric_exchange_is_exact_but_for_drift() -> None:
    pair = Pair(5.0, 0.0, (lambda: 0.01, lambda: 0.01))
    pair.ping(1.0)
    assert pair.one.offset(1.0) is None  # one way tells nothing
    came = pair.pong(1.5)
    offset = pair.one.offset(came)
    assert offset is not None
    assert math.isclose(offset.seconds, 5.0, abs_tol=1e-4)
    assert math.isclose(offset.error, 0.01, abs_tol=1e-4)
    assert offset.drift == 0.0


def test_a_drift_is_found() -> None:
    pair = Pair(-7.0, 50e-6, (lambda: 0.0002, lambda: 0.0003))
    time = pair.run(100.0, 120.0)
    offset = pair.one.offset(time)
    assert offset is not None
    assert math.isclose(offset.drift, 50e-6, rel_tol=0.05)
    assert offset.error < 0.001
    assert pair.wrong(offset, 105.0) <= offset.error


def test_hours_pass_and_the_memory_stays_small() -> None:
    pair = Pair(1.0, 20e-6, (lambda: 0.001, lambda: 0.001))
    time = pair.run(100.0, 3600.0, every=2.0)
    offset = pair.one.offset(time)
    assert offset is not None
    assert len(pair.one._known) <= 64
    assert time - pair.one._known[0].at <= HISTORY
    assert offset.error < 0.002


def test_a_host_that_has_slept_is_measured_anew() -> None:
    pair = Pair(1.0, 0.0, (lambda: 0.001, lambda: 0.001))
    time = pair.run(100.0, 30.0)
    pair.ahead = -50.0
    time = pair.run(time, 2.0)
    offset = pair.one.offset(time)
    assert offset is not None
    assert abs(offset.seconds + 50.0) <= offset.error + 1e-9


@given(
    st.lists(st.tuples(*[st.floats(0.0, 1e6)] * 3), max_size=20), st.lists(st.floats(0.0, 1e6), min_size=20)
)
def test_lies_do_no_harm(stamps: list[tuple[float, float, float]], times: list[float]) -> None:
    neighbour = Neighbour()
    for stamp, now in zip(stamps, sorted(times), strict=False):
        neighbour.take(Stamp(*stamp), now)
        offset = neighbour.offset(now)
        assert offset is None or all(map(math.isfinite, offset))
        assert offset is None or offset.error >= -1e-6


def test_stamps_travel_in_pings() -> None:
    stamp = Stamp(3.5, 2.5, 1.5)
    assert stamp_of(stamp.ping()) == stamp
    assert stamp_of(PING) is None
    for times in ((math.nan, 0, 0), (0, math.inf, 0), (-1.0, 0, 0), (0, 0, 1e300)):
        with pytest.raises(WireError, match="a ping with times that are none"):
            stamp_of(PING + struct.pack("<ddd", *times))
    for data in (PING + PING, PING + bytes(23), PING + bytes(25)):
        with pytest.raises(WireError, match="a ping of"):
            stamp_of(data)


def test_the_clocks_of_all_neighbours() -> None:
    now = [10.0]
    one, other = Clocks(lambda: now[0]), Clocks(lambda: now[0] + 100.0)

    def exchange() -> None:
        for sender, receiver, rank in ((one, other, 0), (other, one, 1)):
            stamp = stamp_of(sender.ping(1 - rank))
            assert stamp is not None
            now[0] += 0.125
            receiver.take(rank, stamp)

    exchange()
    assert one.known() != []
    assert other.known() == []
    exchange()
    ((rank, offset),) = one.known()
    assert (rank, round(offset.seconds)) == (1, 100)
    assert abs(offset.seconds - 100.0) <= offset.error
    ((rank, offset),) = other.known()
    assert (rank, round(offset.seconds)) == (0, -100)
