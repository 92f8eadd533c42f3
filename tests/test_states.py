"""The state machines: their page shows what they are, and each can end."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from aiodist.launch import supervisor
from aiodist.transport.ending import STAGES, Ending, EndingEvent, Stage

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_what_the_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("make_states", DOCS / "make_states.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.PAGE.read_text() == maker.page(), "run python docs/make_states.py"


def test_workers_end_from_every_state() -> None:
    ends = {supervisor.State.OVER}
    for _ in supervisor.State:
        ends |= {state for (state, _), after in supervisor.TRANSITIONS.items() if after in ends}
    assert ends == set(supervisor.State)
    assert not [state for state, _ in supervisor.TRANSITIONS if state is supervisor.State.OVER]


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.OVER])
def test_a_link_can_be_killed_and_fail_in_every_stage(stage: Stage) -> None:
    for event in (EndingEvent.KILL, EndingEvent.FAILED):
        assert STAGES[stage, event] is Stage.OVER


def test_nothing_happens_to_a_link_that_is_over() -> None:
    assert not [stage for stage, _ in STAGES if stage is Stage.OVER]
    ending = Ending()
    assert ending.happened(EndingEvent.KILL) is Stage.OPEN
    assert ending.over
    assert [ending.happened(event) for event in EndingEvent] == [None] * len(EndingEvent)
    assert ending.stage is Stage.OVER
