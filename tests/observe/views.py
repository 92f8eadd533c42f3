"""Views to test with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiodist.observe.view import JobView, RankView
from aiodist.recorder.reading import Event, Group, Line, Record, Recording, Sum, Vitals

WORLD = Group("world", 0, range(4))
LINE = Line("/home/me/train.py", 41, "evaluate")


def an_operation(number: int = 0, op: str = "all_reduce", **more: Any) -> Record:
    """An operation of the world, issued after one second."""
    call = (WORLD, op, number, "float32", (3,), "SUM", -1, 0, 12)
    return replace(Record(*call, LINE, 1.0, 0.0, 0.0, 0.0, 0.0, failed=False), **more)


def a_sum(uses: int = 1, nbytes: int = 12, waited: float = 0.0) -> Sum:
    """All operations of a sort."""
    return Sum(WORLD, "all_reduce", "float32", (3,), "SUM", -1, 0, nbytes, uses, uses, 0, waited, 0.0)


def a_rank(
    rank: int = 0,
    now: float = 10.0,
    *,
    began: float = 0.0,
    left: float = 0.0,
    vitals: Vitals | None = None,
    last: Sequence[Record] = (),
    pending: Sequence[Record] = (),
    sums: Sequence[Sum] = (),
    events: Sequence[Event] = (),
    about: dict[str, Any] | None = None,
    **more: Any,
) -> RankView:
    """A rank of four that has written and turned just now."""
    recording = Recording(
        *(4000 + rank, rank, 4, 0, 5000.0, began, left, (WORLD,), tuple(last), tuple(pending)),
        *(vitals or Vitals(now, 1, now), tuple(sums)),
        about={"argv": ["/home/me/train.py"]} if about is None else about,
        events=tuple(events),
    )
    return RankView("here", "abc123", recording, now, **more)


def a_job(*ranks: RankView) -> JobView:
    """A job of these ranks."""
    return JobView("abc123", ranks)
