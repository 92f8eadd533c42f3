"""Views to test with, of ranks that nobody runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aiodist.observe import JobView, RankView
from aiodist.observe.recorder import Line, Record, Recording
from aiodist.observe.recorder.reading import Event, Group, Sum, Vitals

WORLD = Group("world", 0, range(4))
LINE = Line("/home/u/train.py", 41, "main")


def a_record(op: str = "all_reduce", number: int = 0, issued: float = 10.0, **more: Any) -> Record:
    """An operation of the world of four; it ended before the loop slept, unless times are given."""
    plain: dict[str, Any] = {
        "group": WORLD,
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


def a_sum(uses: int = 1, nbytes: int = 12, waited: float = 0.0) -> Sum:
    """All operations of a sort."""
    return Sum(
        WORLD, "all_reduce", "float32", (3,), "SUM", -1, 0, nbytes, uses, uses, 0, waited, 0.0, uses * nbytes
    )


def a_rank(
    rank: int = 0,
    last: Sequence[Record] = (),
    *,
    now: float = 20.0,
    pending: Sequence[Record] = (),
    flushed: float | None = None,
    vitals: Vitals | None = None,
    began: float = 1.0,
    left: float = 0.0,
    epoch: int = 0,
    groups: Sequence[Group] = (WORLD,),
    sums: Sequence[Sum] = (),
    events: Sequence[str | Event] = (),
    about: dict[str, Any] | None = None,
    size: int = 4,
    host: str = "host-a",
    clock: str = "one",
    **more: Any,
) -> RankView:
    """A rank as it was seen at `now` of its clock; it wrote and turned at `flushed`, which is just now."""
    wrote = now if flushed is None else flushed
    recording = Recording(
        *(4000 + rank, rank, size, epoch, 1e9, began, left, tuple(groups), tuple(last), tuple(pending)),
        *(vitals or Vitals(wrote, 1, wrote, 0.0, len(last), 0), tuple(sums)),
        {"argv": ["train.py"], "clock": clock} if about is None else about,
        tuple(event if isinstance(event, Event) else Event(wrote, event) for event in events),
    )
    return RankView(host, "cafe", recording, now, **more)


def a_job(*ranks: RankView) -> JobView:
    """The job of these ranks."""
    return JobView("cafe", ranks)


def as_json(view: RankView) -> Any:
    """What is in a rank's file."""
    return json.loads(json.dumps(view.to_json()))
