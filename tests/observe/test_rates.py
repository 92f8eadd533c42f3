"""What two views of a job say of its speed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe import RankView
from aiodist.observe.rates import RateRow, age, epoch, named, news, placed, rows, totals, worst_first
from aiodist.observe.recorder.reading import Event, Vitals
from aiodist.observe.view import Doing
from tests.observe.made import LINE, a_job, a_rank, a_record, a_sum


def row_of(before: RankView | None, now: RankView) -> RateRow:
    (row,) = rows(None if before is None else a_job(before), a_job(now))
    return row


def flushed(at: float, issued: int = 0) -> Vitals:
    return Vitals(at, 1, at, 0.25, issued, 1)


def test_a_first_look_knows_no_speed() -> None:
    row = row_of(None, a_rank(2, last=[a_record(number=3)], memory=7, cpu=2.0))
    assert (row.rank, row.host, row.pid, row.doing, row.memory) == (2, "host-a", 4002, "running", 7)
    assert (row.what, row.group, row.line) == ("all_reduce #3", "world", "train.py:41 in main")
    assert not row.pending
    assert (row.ops, row.nbytes, row.waiting, row.cpu) == (None, None, None, None)


def test_speed_is_what_came_between_what_the_rank_wrote() -> None:
    before = a_rank(now=10.0, vitals=flushed(9.5, 100), sums=[a_sum(100, 12, 1.0)], cpu=3.0)
    now = a_rank(now=11.0, vitals=flushed(10.0, 150), sums=[a_sum(150, 12, 1.2)], cpu=3.5)
    row = row_of(before, now)
    assert (row.ops, row.nbytes, row.cpu) == (100.0, 1200.0, 0.5)
    assert row.waiting == pytest.approx(0.4)
    assert (row.late, row.issued, row.failed) == (0.25, 150, 1)


def test_what_is_pending_counts_as_waiting() -> None:
    before = a_rank(now=10.0, vitals=flushed(10.0), pending=[a_record(issued=1.0)])
    row = row_of(before, a_rank(now=11.0, vitals=flushed(11.0), pending=[a_record(issued=1.0)]))
    assert (row.doing, row.since, row.waiting, row.pending) == ("waiting", 10.0, 1.0, True)
    over = [a_record(issued=1.0, arrived=10.25)]
    assert row_of(before, a_rank(now=11.0, vitals=flushed(11.0), pending=over)).waiting == 0.25
    unseen = a_rank(now=11.0, vitals=flushed(11.0), sums=[a_sum(waited=0.0)])
    assert row_of(before, unseen).waiting == 0.0


@pytest.mark.parametrize(
    ("now", "speed"),
    [
        (a_rank(now=10.1, vitals=flushed(9.5)), None),  # nothing was written since
        (a_rank(now=12.0, vitals=flushed(9.5)), 0.0),  # held
        (a_rank(now=10.1, vitals=flushed(9.5), stopped=True), 0.0),
        (a_rank(now=10.1, vitals=flushed(10.0), alive=False), 0.0),
        (a_rank(now=10.1, vitals=flushed(10.0), left=10.0), 0.0),
        (a_rank(now=10.1, vitals=flushed(10.0), began=5.0), None),  # another process has the rank now
    ],
)
def test_speed_of_who_does_nothing_and_of_who_is_not_known(now: RankView, speed: float | None) -> None:
    row = row_of(a_rank(now=10.0, vitals=flushed(9.5, 100)), now)
    assert (row.ops, row.nbytes, row.waiting) == (speed, speed, speed)


def test_the_dead_use_no_processor() -> None:
    assert row_of(a_rank(now=10.0, cpu=3.0), a_rank(now=11.0, alive=False)).cpu == 0.0


def test_totals() -> None:
    first = a_job(a_rank(0, now=10.0, vitals=flushed(10.0)), a_rank(1, now=10.0, vitals=flushed(10.0)))
    then = a_job(
        a_rank(0, now=11.0, vitals=flushed(11.0, 10), sums=[a_sum(10, 100, 0.5)], memory=5),
        a_rank(1, now=11.0, vitals=flushed(11.0, 20), sums=[a_sum(20, 100)], memory=6),
        a_rank(2, now=11.0, alive=False),
        a_rank(3, now=11.0),
    )
    found = totals(rows(first, then))
    assert (found.ranks, found.ops, found.nbytes, found.memory) == (4, 30.0, 3000.0, 11)
    assert found.waiting == pytest.approx(0.5 / 3)  # of rank 3 nothing is known
    assert (found.doing, found.late, found.issued, found.failed) == ({"running": 3, "dead": 1}, 0.25, 30, 2)
    assert totals([]).ops is totals([]).waiting is None


def test_the_worst_comes_first() -> None:
    waits = [a_record(issued=5.0)]
    ranks = [
        a_rank(0),
        a_rank(1, pending=waits),
        a_rank(2, vitals=Vitals(20.0, 1, 15.0)),
        a_rank(3, pending=[a_record(issued=4.0)]),
        a_rank(4, vitals=Vitals(15.0, 1, 15.0)),
        a_rank(5, stopped=True),
        a_rank(6, alive=False),
        a_rank(7, pending=waits),
        a_rank(8, left=9.0),
    ]
    assert [row.rank for row in worst_first(rows(None, a_job(*ranks)))] == [6, 5, 4, 2, 3, 1, 7, 0, 8]


def test_news() -> None:
    failed = a_record(number=4, ended=8.0, failed=True)
    ranks = [
        a_rank(0, now=10.0, last=[a_record(number=3, ended=7.0), failed], events=[Event(9.0, "broke")]),
        a_rank(1, now=110.0, last=[replace(failed, ended=109.5, line=None)]),  # on a host of its own
    ]
    found = [(one.rank, one.ago, one.text, one.failure) for one in news(a_job(*ranks))]
    assert found == [
        (1, 0.5, "all_reduce #4 has failed", True),
        (0, 1.0, "broke", False),
        (0, 2.0, "all_reduce #4 has failed at train.py:41 in main", True),
    ]


def test_words() -> None:
    assert named(a_record("recv", 3, root=1)) == "recv #3 from 1"
    assert named(a_record("send", 3, root=2)) == "send #3 to 2"
    assert placed(LINE) == "train.py:41 in main"
    assert placed(None) == ""
    job = a_job(a_rank(0, began=2.0), a_rank(1, began=11.0))
    assert (age(job), epoch(job)) == (18.0, 0)


times = st.floats(0.0, 1e5)
views = st.builds(
    lambda now, wrote, issued, waited, cpu, pending, alive: a_rank(
        now=now,
        vitals=flushed(min(wrote, now), issued),
        sums=[a_sum(issued, 8, waited)],
        pending=[a_record(issued=pending)] if pending < wrote else (),
        cpu=cpu,
        alive=alive,
    ),
    *(times, times, st.integers(0, 10**9), times, times, times, st.booleans()),
)


@given(views, views)
def test_no_speed_is_below_zero_and_no_share_above_one(before: RankView, now: RankView) -> None:
    row = row_of(before, now)
    assert all(value is None or value >= 0.0 for value in (row.ops, row.nbytes, row.cpu, row.waiting))
    assert row.waiting is None or row.waiting <= 1.0
    assert row.doing in Doing.__members__
