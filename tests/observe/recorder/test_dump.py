"""A recording survives JSON; what is none is refused in one line."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from aiodist.base.errors import WireError
from aiodist.observe.recorder import read
from aiodist.observe.recorder.dump import from_json, to_json
from tests.observe.recorder.made import a_call, a_recorder


def a_dump() -> Any:
    recorder = a_recorder()
    for name, ranks in (("world", range(8)), ("odd", [1, 3, 5])):
        track = recorder.track(name, 0, ranks)
        for number in range(3):
            entry = track.note(track.sort_of(a_call(number, number)), number, sys._getframe(0))
            pending = track.enter(entry)
            if number < 2:
                track.end(pending, failed=number == 1)
    recorder.tell(job="j", argv=["a", "b"])
    recorder.event("x")
    recorder.flush()
    return read(recorder._memory)


def test_a_recording_comes_back_as_it_was() -> None:
    found = a_dump()
    assert found.pending
    assert len(found.last) == 6
    assert from_json(json.loads(json.dumps(to_json(found)))) == found


@pytest.mark.parametrize("change", ["format", "last", "pending", "lines", "groups", "vitals", "rank"])
def test_what_is_no_recording_is_refused(change: str) -> None:
    data = to_json(a_dump())
    without = {key: value for key, value in data.items() if key != change}
    cases: list[Any] = [data | {change: [{"x": 1}]}, without, [], None]
    for broken in cases:
        if change == "rank" and isinstance(broken, dict) and "rank" in broken:
            continue  # types of plain numbers are not looked at
        with pytest.raises(WireError, match="this is no recording"):
            from_json(broken)
