"""Exchanges and their plans, by callers that make no sense: what C would not survive is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist import _engine

pytestmark = pytest.mark.skipif(_engine.compiled is None, reason="needs the compiled engine")

REGION = 64 * 1024


@pytest.fixture
def slots() -> Any:
    engine: Any = _engine.compiled
    memories = [engine.Memory(np.zeros(1 << 20, np.uint8).data, writable=True) for _ in range(2)]
    made = engine.Slots(memories, 0, 0xFFFF, engine.EndOfTurn(engine.TurnClock(), 0.0, 0))
    for index in range(2):
        made.place(index, REGION)
    return made


def plan(slots: Any, kind: str = "share", sizes: tuple[int, int] | None = None, **more: Any) -> Any:
    engine: Any = _engine.compiled
    call = np.zeros(4, np.uint8)  # whose dtype is asked for
    count = more.pop("count", 4)
    return engine.Plan(
        *(slots, None, call, None, bytes(32), engine.KINDS[kind], [0, 1], [0, 1], count, sizes), **more
    )


def test_one_that_no_plan_has_begun_has_ended(slots: Any) -> None:
    kind: Any = type(plan(slots).begin(0, [], []))
    with pytest.raises(TypeError):
        kind(slots)
    made = kind(plan(slots))
    assert made.ended
    assert made.step()
    made.drop()


def test_a_plan_has_room_for_what_it_says(slots: Any) -> None:
    with pytest.raises(ValueError, match="a slot has room"):
        plan(slots, sizes=(4, 10_000), in_slot=True)
    with pytest.raises(ValueError, match="a slot has room"):
        plan(slots, sizes=(5000, 5000), in_slot=True, alike=False)
    with pytest.raises(ValueError, match="a slot has room"):
        plan(slots, "each", count=10_000, in_slot=True)
    with pytest.raises(ValueError, match="of 0 parts"):
        plan(slots, alike=False, lanes=0)
    plan(slots, sizes=(4000, 4000), in_slot=True, alike=False)
