"""The table of a draft's states."""

from __future__ import annotations

from aiodist.group.membership.drafts import TRANSITIONS, DraftEvent, DraftState, after


def test_every_state_is_reached_and_every_event_matters() -> None:
    reached = {DraftState.UNHEARD}
    for _ in DraftState:
        reached |= {after(state, event) for state in reached for event in DraftEvent}
    assert reached == set(DraftState)
    assert {event for _, event in TRANSITIONS} == set(DraftEvent)


def test_what_is_decided_stays_and_can_come_of_any_state() -> None:
    for state in DraftState:
        assert after(state, DraftEvent.DECIDED) is DraftState.EPOCH
    for event in DraftEvent:
        assert after(DraftState.EPOCH, event) is DraftState.EPOCH


def test_a_dropped_draft_is_formed_no_more() -> None:
    for event in set(DraftEvent) - {DraftEvent.DECIDED}:
        assert after(DraftState.DROPPED, event) is DraftState.DROPPED
