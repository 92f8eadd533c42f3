"""Jobs to take metrics of, and what comes out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aiodist.observe.metrics.catalog import Metric
from aiodist.observe.metrics.families import families
from aiodist.observe.metrics.tally import Tally
from aiodist.observe.recorder.reading import Clock, Group, Link, Record, Sum
from aiodist.observe.summary import summary
from aiodist.observe.view import JobView, RankView
from tests.observe.made import a_rank

Values = Mapping[tuple[str, ...], float]


def a_sum(op: str = "all_reduce", group: str = "world", **more: Any) -> Sum:
    """All operations of a sort, in a group of four; none yet unless numbers are given."""
    plain = Sum(Group(group, 0, range(4)), op, "float32", (3,), "", -1, 0, 12, 0, 0, 0, 0.0, 0.0)
    made = replace(plain, **more)
    return replace(made, total=made.uses * made.nbytes)


def seen(
    rank: int = 0,
    *,
    links: Sequence[Link] = (),
    clocks: Sequence[Clock] = (),
    groups: Sequence[Group] | None = None,
    size: int = 4,
    pid: int | None = None,
    host: str = "here",
    **more: Any,
) -> RankView:
    """A rank, as `views.a_rank`, whose clock is that of the others; with what that has not."""
    about = {"argv": ["/home/me/train.py"], "clock": "one"}
    plain: dict[str, Any] = {"about": about, "now": 10.0, "began": 0.0}
    view = a_rank(rank, **plain | more)
    recording = replace(view.recording, offset=5000.0, links=tuple(links), clocks=tuple(clocks), size=size)
    if groups is not None:
        recording = replace(recording, groups=tuple(groups))
    if pid is not None:
        recording = replace(recording, pid=pid)
    return replace(view, recording=recording, host=host)


def collective(group: Group, number: int, issued: float) -> Record:
    """An operation of a group."""
    call = (group, "all_reduce", number, "float32", (3,), "SUM", -1, 0, 12, None)
    return Record(*call, issued, 0.0, 0.0, 0.0, 0.0, failed=False)


def told(job: JobView, tally: Tally | None = None) -> dict[Metric, Values]:
    """The values of all metrics of a job."""
    found = families(summary(None, job), job, tally or Tally())
    return {family.metric: dict(family.samples) for family in found}
