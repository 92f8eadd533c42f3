"""Who is silent, in simulated time: the living are never accused, the silent always, whoever was stopped."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.control.liveness import LATE, PATIENCE, Liveness

EVERY, LIMIT = 0.25, 30.0


def turn(liveness: Liveness, now: float, times: int) -> float:
    """Ticks that come in time; returns the time afterwards."""
    for _ in range(times):
        now += liveness.every
        liveness.tick(now)
    return now


def test_silence_is_overdue_after_the_limit_and_not_before() -> None:
    liveness = Liveness(EVERY, LIMIT, 100.0)
    liveness.attach(7, True, 100.0)
    now = turn(liveness, 100.0, round(LIMIT / EVERY))
    assert liveness.overdue() == ()
    now = turn(liveness, now, 1)
    assert liveness.overdue() == (7,)
    assert liveness.silence(7, now) == now - 100.0
    liveness.heard(7, now)
    assert liveness.overdue() == ()
    assert liveness.silence(7, now + 0.1) == (now + 0.1) - now
    liveness.detach(7)
    liveness.heard(7, now)
    assert liveness.silence(7, now) is None
    assert turn(liveness, now, 1000) > now
    assert liveness.overdue() == ()


def test_it_counts_from_the_moment_of_the_sign_of_life() -> None:
    liveness = Liveness(1.0, 5.0, 0.0)
    liveness.attach(1, True, 0.9)
    liveness.attach(2, True, 0.0)
    now = turn(liveness, 0.0, 5)
    assert liveness.overdue() == ()
    liveness.heard(2, 5.9)
    now = turn(liveness, now, 1)
    assert liveness.overdue() == (1,)
    now = turn(liveness, now, 4)
    assert liveness.overdue() == (1,)
    turn(liveness, now, 1)
    assert liveness.overdue() == (1, 2)


def test_whoever_was_stopped_accuses_nobody() -> None:
    liveness = Liveness(EVERY, LIMIT, 0.0)
    liveness.attach(1, False, 0.0)
    liveness.tick(3600.0)
    assert liveness.overdue() == ()
    # Then the peer has nearly the whole limit again; and the clock's own figure says how long it really was.
    now = turn(liveness, 3600.0, round(LIMIT / EVERY) - round(LATE))
    assert liveness.overdue() == ()
    assert liveness.silence(1, now) == now
    turn(liveness, now, 2)
    assert liveness.overdue() == (1,)


def test_a_clock_that_goes_back_accuses_nobody() -> None:
    liveness = Liveness(EVERY, LIMIT, 1000.0)
    liveness.attach(1, True, 1000.0)
    liveness.tick(0.0)
    assert liveness.overdue() == ()
    assert liveness.silence(1, 0.0) == 0.0


def test_silent_peers_of_this_host_are_left_alone_until_they_are_heard() -> None:
    liveness = Liveness(EVERY, LIMIT, 0.0)
    liveness.attach(1, False, 0.0)
    liveness.attach(2, True, 0.0)
    now, pings = 0.0, {1: 0, 2: 0}
    for _ in range(100):
        now += EVERY
        for rank in liveness.tick(now):
            pings[rank] += 1
    assert pings == {1: PATIENCE, 2: 100}
    liveness.heard(1, now)
    assert set(liveness.tick(now + EVERY)) == {1, 2}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), every=st.sampled_from([0.05, 0.25, 1.0]), factor=st.integers(4, 200))
def test_nobody_accuses_the_living_and_everybody_the_silent(seed: int, every: float, factor: int) -> None:
    """Two processes ping each other over a network that takes its time. Each is stopped now and then, for
    less than the limit or for more; one falls silent for good at the end."""
    rng = random.Random(seed)
    limit = every * factor
    names = (0, 1)
    process = {name: Liveness(every, limit, 0.0) for name in names}
    next_tick = {name: rng.uniform(0, every) for name in names}
    posted: dict[int, list[float]] = {name: [] for name in names}  # when what waits in its socket was sent
    for name in names:
        process[name].attach(1 - name, rng.random() < 0.5, 0.0)
    stopped_for = dict.fromkeys(names, 0.0)  # the longest time without a tick, so far
    accused: dict[int, float] = {}
    end, now = limit * 6, 0.0
    dead_from = end / 2
    while now < end and 0 not in accused:
        name = min(names, key=lambda n: next_tick[n])
        now = next_tick[name]
        if name == 1 and now > dead_from:
            next_tick[1] = end * 2
            continue
        liveness = process[name]
        pings = liveness.tick(now)
        while posted[name] and posted[name][0] <= now:  # the shell reads before it judges
            posted[name].pop(0)
            liveness.heard(1 - name, now)
        for other in liveness.overdue():
            accused.setdefault(name, now)
            # Only who was silent for the limit, by the accuser's own clock.
            assert stopped_for[other] > limit - 2 * every or now > dead_from, (name, other, now)
        if pings:
            posted[1 - name].append(now + rng.uniform(0, every / 2))
            posted[1 - name].sort()
        pause = every
        if now < dead_from and rng.random() < 0.02:
            pause = rng.uniform(0, limit * rng.choice([0.5, 1.5]))
        stopped_for[name] = max(stopped_for[name], pause)
        next_tick[name] = now + pause
    assert 0 in accused
