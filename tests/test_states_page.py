"""docs/states.md shows the state machines as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """docs/make_states.py, which is a script."""
    spec = importlib.util.spec_from_file_location("make_states", DOCS / "make_states.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_as_generated(maker: ModuleType) -> None:
    assert maker.PAGE.read_text() == maker.page(), "run python docs/make_states.py"


def test_every_state_can_be_reached_and_left(maker: ModuleType) -> None:
    for _, transitions in maker.MACHINES.values():
        states = list(type(next(iter(transitions.values()))))
        reached = {states[0]}
        for _ in states:
            reached |= {after for (before, _), after in transitions.items() if before in reached}
        assert reached == set(states)
        assert {before for before, _ in transitions} >= set(states[:-1])
