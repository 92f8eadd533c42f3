"""The state machines: their page shows what they are, and each can end."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from aiodist.launch.supervisor import TRANSITIONS, State

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_what_the_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("make_states", DOCS / "make_states.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.PAGE.read_text() == maker.page(), "run python docs/make_states.py"


def test_workers_end_from_every_state() -> None:
    ends = {State.OVER}
    for _ in State:
        ends |= {state for (state, _), after in TRANSITIONS.items() if after in ends}
    assert ends == set(State)
    assert not [state for state, _ in TRANSITIONS if state is State.OVER]
