"""The table of a draft's states, and its picture."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from aiodist.membership.drafts import TRANSITIONS, Event, State, after

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """docs/make_states.py, which is a script."""
    spec = importlib.util.spec_from_file_location("make_states", DOCS / "make_states.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_as_generated(maker: ModuleType) -> None:
    text = maker.PAGE.read_text()
    assert maker.BLOCK.search(text)
    assert text == maker.page(text), "run python docs/make_states.py"
    for (before, event), to in TRANSITIONS.items():
        assert f"{before.name} --> {to.name}: {event.value}\n" in text


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
