"""Views to test with, of ranks that nobody runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiodist.observe import JobView, RankView
from aiodist.recorder import Line, Record, Recording
from aiodist.recorder.reading import Event, Group, Vitals

LINE = Line("/home/u/train.py", 41, "main")


def a_record(op: str = "all_reduce", number: int = 0, issued: float = 10.0, **more: Any) -> Record:
    """An operation of the world of four; it ended before the loop slept, unless times are given."""
    plain: dict[str, Any] = {
        "group": Group("world", 0, range(4)),
        "op": op,
        "number": number,
        "dtype": "float32",
        "shape": (3,),
        "reduce": "SUM" if op == "all_reduce" else "",
        "root": -1,
        "tag": 0,
        "nbytes": 12,
        "line": LINE,
        "issued": issued,
        "pending": 0.0,
        "arrived": 0.0,
        "first": 0.0,
        "ended": 0.0,
        "failed": False,
    }
    return Record(**plain | more)


def a_rank(
    rank: int = 0,
    last: Sequence[Record] = (),
    *,
    pending: Sequence[Record] = (),
    flushed: float = 20.0,
    events: Sequence[str] = (),
    size: int = 4,
    host: str = "host-a",
    clock: str = "one",
    **more: Any,
) -> RankView:
    """A rank as it was seen at 20.0 of its clock, whose process began at 1.0."""
    about = {"argv": ["train.py"], "clock": clock}
    told = tuple(Event(flushed, text) for text in events)
    vitals = Vitals(flushed, 1, flushed, 0.0, len(last), 0)
    recording = Recording(
        *(4000 + rank, rank, size, 0, 1e9, 1.0, 0.0, (Group("world", 0, range(4)),), tuple(last)),
        *(tuple(pending), vitals, (), about, told),
    )
    return replace(RankView(host, "cafe", recording, 20.0), **more)


def a_job(*ranks: RankView) -> JobView:
    """The job of these ranks."""
    return JobView("cafe", ranks)


def as_json(view: RankView) -> Any:
    """What is in a rank's file."""
    return json.loads(json.dumps(view.to_json()))
