"""Pauses grow while nothing moves, and are gone when something does."""

from __future__ import annotations

from aiodist.backends.mpi.backoff import LONGEST, NONE, OFFER, SHARE, SHORTEST, SPIN, YIELD, PollPauses


def test_first_no_pause_then_the_core_is_offered_then_it_sleeps() -> None:
    backoff = PollPauses()
    assert backoff.pause(5.0) == NONE
    assert backoff.pause(5.0 + SPIN * 0.9) == NONE
    assert backoff.pause(5.0 + SPIN * 1.1) == YIELD
    assert backoff.pause(5.0 + SPIN + OFFER * 0.9) == YIELD
    assert backoff.pause(5.0 + SPIN + OFFER * 1.1) == SHORTEST


def test_sleeps_grow_with_the_wait_to_a_bound() -> None:
    backoff = PollPauses()
    backoff.pause(0.0)
    waits = [SPIN + OFFER + 1e-3 * i for i in range(20)]
    sleeps = [backoff.pause(wait) for wait in waits]
    assert sleeps == sorted(sleeps)
    assert all(SHORTEST <= sleep <= LONGEST for sleep in sleeps)
    assert all(sleep in (wait * SHARE, SHORTEST, LONGEST) for sleep, wait in zip(sleeps, waits, strict=True))
    assert sleeps[-1] == LONGEST == 1e-3


def test_what_moves_begins_anew() -> None:
    backoff = PollPauses()
    backoff.pause(0.0)
    assert backoff.pause(1.0) == LONGEST
    backoff.moved()
    assert backoff.pause(2.0) == NONE
    assert backoff.pause(2.0 + SPIN * 0.5) == NONE
    assert backoff.pause(2.0 + SPIN + OFFER * 1.01) == SHORTEST
