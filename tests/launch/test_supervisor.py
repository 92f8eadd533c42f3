"""When workers are stopped, and how: the machine, without a process."""

from __future__ import annotations

import signal

from hypothesis import given
from hypothesis import strategies as st

from aiodist.launch.supervisor import (
    FAILURE_GRACE,
    INTERRUPT_GRACE,
    SYMPTOM_GRACE,
    Asked,
    Away,
    Back,
    Elsewhere,
    Ended,
    Event,
    Over,
    Send,
    Supervisor,
    Tick,
    Wake,
)

TERM, KILL, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGINT


def test_a_job_that_goes_well() -> None:
    machine = Supervisor(3, 30)
    assert machine.handle(Ended(1, failed=False), 1) == []
    assert machine.handle(Ended(0, failed=False), 2) == []
    assert machine.handle(Ended(2, failed=False), 3) == [Over()]


def test_the_first_failure_stops_the_rest_after_a_grace() -> None:
    machine = Supervisor(4, 30)
    stop = 5 + FAILURE_GRACE
    assert machine.handle(Ended(1, failed=True), 5) == [Wake(stop)]
    assert machine.handle(Ended(3, failed=True), 5.1) == [], "a second failure does not extend it"
    assert not machine.stopping
    assert machine.handle(Tick(), stop) == [Send(TERM, (0, 2)), Wake(stop + 30)]
    assert machine.handle(Ended(0, failed=True), 6) == []
    assert machine.handle(Tick(), stop + 29) == []
    assert machine.handle(Tick(), stop + 30) == [Send(KILL, (2,))]
    assert machine.handle(Ended(2, failed=True), 36) == [Over()]


def test_a_grace_ends_early_when_all_have_ended() -> None:
    machine = Supervisor(2, 30)
    machine.handle(Ended(1, failed=True), 5)
    assert machine.handle(Ended(0, failed=True, symptom=True), 5.01) == [Over()]
    assert machine.handle(Tick(), 5 + FAILURE_GRACE) == []


def test_a_signal_ends_a_grace() -> None:
    machine = Supervisor(2, 30)
    machine.handle(Ended(1, failed=True), 5)
    assert machine.handle(Asked(TERM), 5.1) == [Send(TERM, (0,)), Wake(35.1)]
    assert machine.handle(Tick(), 5 + FAILURE_GRACE) == []


def test_a_symptom_gives_the_culprit_a_moment() -> None:
    machine = Supervisor(3, 30)
    stop = 1.1 + FAILURE_GRACE
    assert machine.handle(Ended(0, failed=True, symptom=True), 1) == [Wake(1 + SYMPTOM_GRACE)]
    assert machine.handle(Ended(1, failed=True), 1.1) == [Wake(stop)], "sooner now"
    assert machine.handle(Tick(), stop) == [Send(TERM, (2,)), Wake(stop + 30)]
    assert machine.handle(Tick(), 1 + SYMPTOM_GRACE) == []


def test_a_culprit_that_comes_late_does_not_extend_a_symptoms_grace() -> None:
    machine = Supervisor(3, 30)
    machine.handle(Ended(0, failed=True, symptom=True), 1)
    assert machine.handle(Ended(1, failed=True), 1 + SYMPTOM_GRACE - FAILURE_GRACE / 2) == []
    assert machine.handle(Tick(), 1 + SYMPTOM_GRACE) == [Send(TERM, (2,)), Wake(1 + SYMPTOM_GRACE + 30)]


def test_a_symptom_alone_stops_the_rest_after_its_grace() -> None:
    machine = Supervisor(2, 30)
    machine.handle(Ended(0, failed=True, symptom=True), 1)
    assert machine.handle(Tick(), 1 + SYMPTOM_GRACE) == [Send(TERM, (1,)), Wake(31 + SYMPTOM_GRACE)]


def test_interrupt_climbs_three_rungs_by_time() -> None:
    machine = Supervisor(2, 30)
    assert machine.handle(Asked(INT), 0) == [Send(INT, (0, 1)), Wake(INTERRUPT_GRACE)]
    assert machine.handle(Tick(), INTERRUPT_GRACE) == [Send(TERM, (0, 1)), Wake(INTERRUPT_GRACE + 30)]
    assert machine.handle(Tick(), INTERRUPT_GRACE + 30) == [Send(KILL, (0, 1))]


def test_each_further_signal_climbs_at_once() -> None:
    machine = Supervisor(1, 30)
    machine.handle(Asked(INT), 0)
    assert machine.handle(Asked(INT), 1) == [Send(TERM, (0,)), Wake(31)]
    assert machine.handle(Asked(INT), 2) == [Send(KILL, (0,))]
    assert machine.handle(Asked(INT), 3) == []


def test_sigterm_and_what_happens_elsewhere_start_with_sigterm() -> None:
    assert Supervisor(1, 30).handle(Asked(TERM), 0) == [Send(TERM, (0,)), Wake(30)]
    machine = Supervisor(1, 30)
    assert machine.handle(Elsewhere(stopped=True), 0) == [Send(TERM, (0,)), Wake(30)]
    assert machine.handle(Elsewhere(stopped=True), 1) == []


def test_one_wish_that_comes_by_two_ways_is_one() -> None:
    """A launcher tells every agent of a signal, and so does the first agent that has it."""
    machine = Supervisor(1, 30)
    grace = INTERRUPT_GRACE
    assert machine.handle(Elsewhere(stopped=True, interrupt=True), 0) == [Send(INT, (0,)), Wake(grace)]
    assert machine.handle(Elsewhere(stopped=True, interrupt=True), 1) == []
    assert machine.handle(Asked(INT), 1) == []
    assert machine.handle(Asked(INT), 2) == [Send(TERM, (0,)), Wake(32)]
    machine = Supervisor(1, 30)
    assert machine.handle(Asked(INT), 0) == [Send(INT, (0,)), Wake(grace)]
    assert machine.handle(Elsewhere(stopped=True), 1) == []
    assert machine.handle(Asked(INT), 2) == [Send(TERM, (0,)), Wake(32)]


def test_a_rank_that_others_waited_for_elsewhere_is_given_the_time_to_say_what_it_does() -> None:
    assert Supervisor(1, 30).handle(Elsewhere(), 0) == [Wake(FAILURE_GRACE)]
    assert Supervisor(1, 30).handle(Elsewhere(symptom=True), 0) == [Wake(SYMPTOM_GRACE)]


def test_a_failure_elsewhere_gives_a_grace_too() -> None:
    machine = Supervisor(2, 30)
    assert machine.handle(Elsewhere(), 0) == [Wake(FAILURE_GRACE)]
    assert machine.handle(Elsewhere(), 0.1) == []
    assert machine.handle(Ended(1, failed=True, symptom=True), 0.2) == []
    assert machine.handle(Tick(), FAILURE_GRACE) == [Send(TERM, (0,)), Wake(30 + FAILURE_GRACE)]


def test_nothing_follows_from_a_worker_that_may_come_back() -> None:
    machine = Supervisor(2, 30)
    assert machine.handle(Away(1), 1) == []
    assert (machine.alive, machine.over, machine.may_return(1)) == ((0,), False, True)
    assert machine.handle(Back(1), 2) == []
    assert machine.alive == (0, 1)


def test_it_is_not_over_while_somebody_may_come_back() -> None:
    machine = Supervisor(2, 30)
    machine.handle(Away(1), 1)
    assert machine.handle(Ended(0, failed=False), 2) == []
    assert not machine.over
    assert machine.handle(Ended(1, failed=True), 3) == [Over()]


def test_a_worker_that_does_not_come_back_stops_the_rest() -> None:
    machine = Supervisor(2, 30)
    machine.handle(Away(1), 1)
    assert machine.handle(Ended(1, failed=True), 2) == [Wake(2 + FAILURE_GRACE)]


def test_nobody_comes_back_once_the_end_is_near() -> None:
    machine = Supervisor(3, 30)
    machine.handle(Away(1), 1)
    machine.handle(Elsewhere(), 2)
    assert not machine.may_return(1), "in the grace"
    assert machine.handle(Asked(TERM), 2.1) == [Send(TERM, (0, 2)), Wake(32.1)]
    assert machine.handle(Away(2), 3) == [], "an end like any other"
    assert machine.handle(Ended(1, failed=True), 3) == []
    assert machine.handle(Ended(0, failed=True), 3) == [Over()]


def test_the_operator_ends_a_job_in_which_only_restarts_are_awaited() -> None:
    machine = Supervisor(1, 30)
    machine.handle(Away(0), 1)
    assert machine.handle(Asked(INT), 2) == [Over()]
    assert machine.handle(Ended(0, failed=True), 3) == []
    assert machine.over


events = st.one_of(
    st.builds(Ended, st.integers(0, 4), st.booleans(), st.booleans()),
    st.builds(Away, st.integers(0, 4)),
    st.builds(Back, st.integers(0, 4)),
    st.builds(Asked, st.sampled_from([INT, TERM])),
    st.builds(Elsewhere, st.booleans(), st.booleans()),
    st.just(Tick()),
)


@given(st.lists(st.tuples(events, st.floats(0, 20)), max_size=40))
def test_laws(script: list[tuple[Event, float]]) -> None:
    """Only living workers get signals, never a milder one than before; Over comes once, when all ended."""
    machine = Supervisor(5, 30)
    alive, away, now, severity, overs = set(range(5)), set[int](), 0.0, 0, 0
    order = {INT: 1, TERM: 2, KILL: 3}
    for event, passed in script:
        now += passed
        if isinstance(event, Away) and event.local_rank in alive:
            alive.discard(event.local_rank)
            away |= set() if machine.stopping else {event.local_rank}
        if isinstance(event, Ended):
            alive.discard(event.local_rank)
            away.discard(event.local_rank)
        if isinstance(event, Back):
            if not machine.may_return(event.local_rank):
                continue  # the shell asks first
            away.discard(event.local_rank)
            alive.add(event.local_rank)
        for action in machine.handle(event, now):
            if isinstance(action, Send):
                assert set(action.local_ranks) == alive
                assert order[signal.Signals(action.signum)] > severity
                severity = order[signal.Signals(action.signum)]
            elif isinstance(action, Wake):
                assert action.at >= now
            else:
                overs += 1
                assert not alive
        if machine.stopping:
            away.clear()
    assert overs == (not alive and not away)
    assert machine.over == bool(overs)
    assert machine.alive == tuple(sorted(alive))
