"""The table of a draft's states."""

from __future__ import annotations

from aiodist.group.membership.drafts import TRANSITIONS, Event, State, after


def test_every_state_is_reached_and_every_event_matters() -> None:
    reached = {State.UNHEARD}
    for _ in State:
        reached |= {after(state, event) for state in reached for event in Event}
    assert reached == set(State)
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_what_is_decided_stays_and_can_come_of_any_state() -> None:
    for state in State:
        assert after(state, Event.DECIDED) is State.EPOCH
    for event in Event:
        assert after(State.EPOCH, event) is State.EPOCH


def test_a_dropped_draft_is_formed_no_more() -> None:
    for event in set(Event) - {Event.DECIDED}:
        assert after(State.DROPPED, event) is State.DROPPED
