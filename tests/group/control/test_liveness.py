"""Liveness in simulated time: the living are never accused, the stopped always, whoever was stopped."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.group.control.liveness import (
    LATE,
    PATIENCE,
    Blocked,
    Liveness,
    LoopProgress,
    LoopState,
    Patience,
)

EVERY, LIMIT = 0.25, 30.0
USUAL = Patience()


def turn(liveness: Liveness, now: float, times: int) -> float:
    """Ticks that come in time; returns the time afterwards."""
    for _ in range(times):
        now += liveness.patience.heartbeat
        liveness.tick(now)
    return now


def watch(liveness: Liveness, now: float, times: int, stopped: bool) -> float:
    """As `turn`, with looks at who is silent."""
    for _ in range(times):
        now = turn(liveness, now, 1)
        for rank in liveness.unsure():
            liveness.checked(rank, stopped)
    return now


def test_a_linked_peer_is_quiet_that_gave_no_sign_of_its_loop_while_this_one_turned() -> None:
    liveness = Liveness(USUAL, 100.0)
    assert not liveness.quiet(7, 100.0)
    liveness.attach(7, 100.0)
    now = turn(liveness, 100.0, 2)
    assert not liveness.quiet(7, now + 60)  # time that this process missed
    now = turn(liveness, now, 2)
    assert not liveness.quiet(7, now)
    now = turn(liveness, now, 1)
    liveness.lives(7, now)  # its watchdog, not its loop
    assert liveness.quiet(7, now)
    liveness.turned(7, now)
    assert not liveness.quiet(7, now)


# ── stopped ──────────────────────────────────────────────────────────────────────────────────────────────


def test_who_is_seen_to_be_stopped_is_overdue_after_the_limit_and_not_before() -> None:
    liveness = Liveness(USUAL, 100.0, visible=[7])
    liveness.attach(7, 100.0)
    now = watch(liveness, 100.0, round(LIMIT / EVERY), stopped=True)
    assert not liveness.overdue()
    now = watch(liveness, now, 1, stopped=True)
    assert liveness.overdue() == {7: "it was stopped for 30 s (by a signal or a debugger)"}
    assert liveness.silence(7, now) == now - 100.0
    liveness.turned(7, now)
    assert not liveness.overdue()
    assert liveness.silence(7, now + 0.1) == (now + 0.1) - now
    liveness.detach(7)
    liveness.turned(7, now)
    assert liveness.silence(7, now) is None
    assert watch(liveness, now, 1000, stopped=True) > now
    assert not liveness.overdue()


def test_who_is_seen_not_to_be_stopped_is_never_overdue_and_a_stop_counts_from_the_last_look() -> None:
    liveness = Liveness(USUAL, 0.0, visible=[7])
    liveness.attach(7, 0.0)
    now = watch(liveness, 0.0, 40_000, stopped=False)
    assert not liveness.overdue()
    now = watch(liveness, now, round(LIMIT / EVERY), stopped=True)
    assert not liveness.overdue()
    watch(liveness, now, 1, stopped=True)
    assert liveness.overdue().keys() == {7}


def test_the_limit_counts_from_the_moment_of_the_sign_of_life() -> None:
    liveness = Liveness(Patience(1.0, 5.0, 5.0, 10.0), 0.0, visible=[1, 2])
    liveness.attach(1, 0.9)
    liveness.attach(2, 0.0)
    now = watch(liveness, 0.0, 5, stopped=True)
    assert not liveness.overdue()
    liveness.turned(2, 5.9)
    now = watch(liveness, now, 1, stopped=True)
    assert liveness.overdue().keys() == {1}
    now = watch(liveness, now, 4, stopped=True)
    assert liveness.overdue().keys() == {1}
    watch(liveness, now, 1, stopped=True)
    assert liveness.overdue().keys() == {1, 2}


# ── silent ───────────────────────────────────────────────────────────────────────────────────────────────


def test_who_cannot_be_looked_at_has_minutes() -> None:
    liveness = Liveness(USUAL, 0.0)
    liveness.attach(7, 0.0)
    now = turn(liveness, 0.0, round(600 / EVERY))
    assert not liveness.overdue()
    assert liveness.unsure() == ()
    turn(liveness, now, 1)
    assert liveness.overdue() == {
        7: "it gave no sign of life for 600 s (it is stopped, or a call holds its interpreter)"
    }


def test_the_word_of_a_watchdog_is_a_sign_of_life_and_so_is_that_of_who_looked() -> None:
    for state, alive in [
        (LoopState.blocked, True),
        (LoopState.held, True),
        (LoopState.stopped, False),
        (LoopState.silent, False),
    ]:
        liveness = Liveness(USUAL, 0.0)
        liveness.attach(7, 0.0)
        now = turn(liveness, 0.0, round(500 / EVERY))
        liveness.learn(7, state, 500.0, "", now)
        now = turn(liveness, now, round(500 / EVERY))
        assert bool(liveness.overdue()) is not alive, state
        assert liveness.blocked.keys() == {7}
    liveness = Liveness(USUAL, 0.0)
    liveness.attach(7, 0.0)
    now = turn(liveness, 0.0, round(500 / EVERY))
    liveness.lives(7, now)
    turn(liveness, now, round(500 / EVERY))
    assert not liveness.overdue()


# ── who was stopped itself ───────────────────────────────────────────────────────────────────────────────


def test_whoever_was_stopped_accuses_nobody() -> None:
    liveness = Liveness(USUAL, 0.0, visible=[1])
    liveness.attach(1, 0.0)
    liveness.tick(3600.0)
    for rank in liveness.unsure():
        liveness.checked(rank, True)
    assert not liveness.overdue()
    # Then the peer has nearly the whole limit again; and the clock's own figure says how long it really was.
    now = watch(liveness, 3600.0, round(LIMIT / EVERY) - round(LATE), stopped=True)
    assert not liveness.overdue()
    assert liveness.silence(1, now) == now
    watch(liveness, now, 2, stopped=True)
    assert liveness.overdue().keys() == {1}


def test_a_clock_that_goes_back_accuses_nobody() -> None:
    liveness = Liveness(USUAL, 1000.0, visible=[1])
    liveness.attach(1, 1000.0)
    liveness.tick(0.0)
    assert not liveness.overdue()
    assert liveness.silence(1, 0.0) == 0.0


def test_peers_whose_loops_are_silent_are_left_alone_until_they_are_heard() -> None:
    liveness = Liveness(USUAL, 0.0)
    liveness.attach(1, 0.0)
    liveness.attach(2, 0.0)
    now, pings = 0.0, {1: 0, 2: 0}
    for number in range(100):
        now += EVERY
        if number % 8 == 0:
            liveness.turned(2, now)
            liveness.lives(1, now)  # its watchdog: there is still nobody who reads
        for rank in liveness.tick(now):
            pings[rank] += 1
    assert pings == {1: PATIENCE, 2: 100}
    liveness.turned(1, now)
    assert set(liveness.tick(now + EVERY)) == {1, 2}


# ── what is told ─────────────────────────────────────────────────────────────────────────────────────────


def told(
    liveness: Liveness, seconds: float, stopped: bool | None = None, now: float = 0.0
) -> list[tuple[float, LoopState]]:
    """The news of rank 7 in the course of time: after how many seconds, and what."""
    found = []
    for _ in range(round(seconds / EVERY)):
        now = turn(liveness, now, 1)
        for rank in liveness.unsure():
            if stopped is not None:
                liveness.checked(rank, stopped)
        for rank, state, silent in liveness.news(now):
            assert rank == 7
            found.append((silent, state))
            liveness.learn(rank, state, silent, "", now)
    return found


@pytest.mark.parametrize(
    ("stopped", "state"), [(None, LoopState.silent), (False, LoopState.held), (True, LoopState.stopped)]
)
def test_silence_is_told_once_after_each_doubling(stopped: bool | None, state: LoopState) -> None:
    liveness = Liveness(USUAL, 0.0, visible=[] if stopped is None else [7])
    liveness.attach(7, 0.0)
    found = told(liveness, 590, stopped)
    assert {what for _, what in found} == {state}
    times = [when for when, _ in found]
    assert times[0] == 6.0  # a heartbeat or four after `warn_after`: its own watchdog speaks first
    assert all(2 * before <= after <= 2 * before + 2 for before, after in pairwise(times[:5]))
    assert [after - before for before, after in pairwise(times[5:])] == [151, 151]


def test_who_has_been_told_already_keeps_quiet() -> None:
    liveness = Liveness(USUAL, 0.0, visible=[7])
    liveness.attach(7, 0.0)
    progress = LoopProgress(USUAL, 0.0)
    now, words = 0.0, []
    for number in range(round(300 / EVERY)):
        now += EVERY
        liveness.tick(now)
        for rank in liveness.unsure():
            liveness.checked(rank, False)
        if number % 2 == 1 and (seconds := progress.tick(now, 0)) is not None:
            words.append(seconds)
            liveness.lives(7, now)
            liveness.learn(7, LoopState.blocked, seconds, "train.py:41 in evaluate", now)
        assert not liveness.news(now), now
    assert words == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0]
    assert (
        liveness.blocked[7].describe(now) == "has not run its event loop for 300 s: train.py:41 in evaluate"
    )
    # Then the watchdog falls silent, too.
    found = told(liveness, 100, False, now)
    assert [state for _, state in found] == [LoopState.held]


def test_a_stop_is_told_at_once_and_so_is_its_end() -> None:
    liveness = Liveness(USUAL, 0.0, visible=[7])
    liveness.attach(7, 0.0)
    liveness.learn(7, LoopState.blocked, 5.0, "train.py:41", 0.0)
    assert told(liveness, 2, True) == [(0.75, LoopState.stopped)]
    assert liveness.blocked[7].describe(2.0).endswith(": it is stopped (by a signal or a debugger)")
    assert [state for _, state in told(liveness, 2, False, 2.0)] == [LoopState.held]
    assert liveness.blocked[7].describe(2.0).endswith(": a call holds its interpreter")


def test_who_sees_a_process_answers_who_cannot() -> None:
    """A rank of another host falls silent; this one has no link with it, but shares its host."""
    for stopped, state in [(True, LoopState.stopped), (False, LoopState.held)]:
        liveness = Liveness(USUAL, 0.0, visible=[7])
        now = turn(liveness, 0.0, 1000)
        assert liveness.unsure() == ()
        liveness.learn(7, LoopState.silent, 6.0, "", now)
        assert liveness.blocked[7].state is LoopState.silent
        assert told(liveness, 1, stopped, now) == [(6.25, state)]
        liveness.learn(7, LoopState.silent, 6.1, "", now)  # who says so has not heard of it yet
        assert liveness.blocked[7].state is state
        watch(liveness, now, round(24 / EVERY), stopped)
        assert bool(liveness.overdue()) is stopped  # 30 s after its last sign of life
        liveness.learn(7, LoopState.runs, 0.0, "", now)
        assert not liveness.blocked
        watch(liveness, now, 10_000, True)
        assert not liveness.overdue()


def test_a_loop_that_turns_again_is_forgotten() -> None:
    for linked in (True, False):
        liveness = Liveness(USUAL, 0.0)
        if linked:
            liveness.attach(7, 0.0)
        liveness.learn(7, LoopState.blocked, 5.0, "train.py:41", 0.0)
        if linked:
            liveness.turned(7, 1.0)
        else:
            liveness.learn(7, LoopState.runs, 0.0, "", 1.0)
        assert not liveness.blocked
    liveness.learn(7, LoopState.blocked, 5.0, "", 1.0)
    liveness.detach(7)  # lost, or gone
    assert not liveness.blocked


def test_words_for_a_place_that_nobody_knows() -> None:
    assert Blocked(LoopState.blocked, "", 0.0, 5.0).describe(8.4) == (
        "has not run its event loop for 8 s: its line is not known"
    )


# ── the watchdog's part ──────────────────────────────────────────────────────────────────────────────────


def test_a_watchdog_speaks_of_a_loop_that_does_not_turn_and_begins_anew_when_it_has() -> None:
    progress = LoopProgress(USUAL, 0.0)
    assert progress.every == 0.5
    now, turns, words = 0.0, 0, []
    for number in range(240):
        now += progress.every
        if number < 20 or number == 100:
            turns += 1
        if (seconds := progress.tick(now, turns)) is not None:
            words.append((now, seconds))
    first = [(15, 5), (20, 10), (30, 20), (50, 40)]  # its loop turned at 10
    second = [(55.5, 5), (60.5, 10), (70.5, 20), (90.5, 40)]  # and at 50.5
    assert words == first + second


def test_a_watchdog_that_was_stopped_itself_says_nothing_of_that_time() -> None:
    progress = LoopProgress(USUAL, 0.0)
    assert progress.tick(0.5, 1) is None
    assert progress.tick(3600.0, 1) is None
    assert [progress.tick(3600 + n / 2, 1) for n in range(1, 9)] == [None] * 7 + [5.0]


def test_short_settings_have_short_steps() -> None:
    assert LoopProgress(Patience(0.05, 0.2, 1.0, 2.0), 0.0).every == 0.05
    assert Patience(0.05, 5.0, 1.0, 2.0).next_word(0.0) == 0.5
    assert Patience(0.05, 5.0, 1.0, 2.0).next_word(3.0) == 3.5


# ── at random ────────────────────────────────────────────────────────────────────────────────────────────


class Process:
    """One of two. Its loop is blocked, its interpreter held, or it is stopped, each for a while."""

    def __init__(self, name: int, patience: Patience, sees: bool, rng: random.Random) -> None:
        self.name = name
        self.liveness = Liveness(patience, 0.0, visible=[1 - name] if sees else [])
        self.liveness.attach(1 - name, 0.0)
        self.progress = LoopProgress(patience, 0.0)
        self.next_beat = rng.uniform(0, patience.heartbeat)
        self.next_look = rng.uniform(0, self.progress.every)
        self.turns = 0
        self.stopped_until = 0.0
        self.last_sign = 0.0
        self.posted: list[
            tuple[float, float | None]
        ] = []  # what waits in its socket: when, a watchdog's word


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    every=st.sampled_from([0.05, 0.25, 1.0]),
    factor=st.integers(4, 100),
    sees=st.booleans(),
)
def test_nobody_accuses_the_living_and_everybody_the_silent(
    seed: int, every: float, factor: int, sees: bool
) -> None:
    """Two processes ping each other over a network that takes its time. Loops are blocked for any time, and
    interpreters held or processes stopped for less than the limit or for more; one is stopped for good."""
    rng = random.Random(seed)
    evict = every * factor
    patience = Patience(every, max(evict / 4, 4 * every), evict, 3 * evict)
    limit = evict if sees else 3 * evict
    both = [Process(name, patience, sees, rng) for name in (0, 1)]
    longest = [0.0, 0.0]  # without a sign until it was stopped no more; where nobody sees that, or held
    accused: dict[int, float] = {}
    dead_from, now = limit * 3, 0.0
    end = dead_from + 3 * limit
    while now < end and 0 not in accused:
        one = min(both, key=lambda p: min(p.next_beat, p.next_look))
        name, other = one.name, both[1 - one.name]
        now = min(one.next_beat, one.next_look)
        if name == 1 and now > dead_from:
            one.next_beat = one.next_look = end * 2
            one.stopped_until = end * 2
            continue
        delay = rng.uniform(0, every / 2)
        if one.next_look <= one.next_beat:
            one.next_look = now + one.progress.every
            word = one.progress.tick(now, one.turns)
            if word is not None:
                other.posted.append((now + delay, word))
                one.last_sign = now
            continue
        one.turns += 1
        liveness = one.liveness
        pings = liveness.tick(now)
        one.posted.sort(key=lambda item: item[0])
        while one.posted and one.posted[0][0] <= now:  # the shell reads before it judges
            _, word = one.posted.pop(0)
            if word is None:
                liveness.turned(1 - name, now)
            else:
                liveness.lives(1 - name, now)
                liveness.learn(1 - name, LoopState.blocked, word, "", now)
        for rank in liveness.unsure():
            liveness.checked(rank, now < other.stopped_until)
        for rank, state, seconds in liveness.news(now):
            liveness.learn(rank, state, seconds, "", now)
        if liveness.overdue():
            accused.setdefault(name, now)
            assert longest[1 - name] > limit - 3 * every or now > dead_from, (name, now)
        if pings:
            other.posted.append((now + delay, None))
            one.last_sign = now
        pause = every
        if now < dead_from and rng.random() < 0.02:
            pause = rng.uniform(0, limit * rng.choice([0.5, 1.5]))
            how = rng.choice(["blocked", "held", "stopped"])
            if how != "blocked":  # then its watchdog does not run, either
                one.next_look = max(one.next_look, now + pause + rng.uniform(0, one.progress.every))
            if how == "stopped":
                one.stopped_until = now + pause
            if how == "stopped" or (how == "held" and not sees):
                # A rank does not ping one whose loop was silent before it has heard that: two stops, one turn
                # apart, may be one silence.
                longest[name] = max(longest[name], now + pause - one.last_sign)
        one.next_beat = now + pause
    assert 0 in accused
