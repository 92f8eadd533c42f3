"""The last seconds of some ranks, as they are drawn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from aiodist.observe.timeline import FINEST, timeline
from tests.observe.made import a_job, a_record
from tests.observe.made import a_rank as at_twenty

a_rank = partial(at_twenty, now=10.0, began=0.0)


def lane(told: dict[str, Any], place: int = 0) -> list[Any]:
    spans: list[Any] = told["ranks"][place]["spans"]
    return spans


def test_waiting_and_moving_are_told_apart() -> None:
    ended = a_record(number=0, issued=6.0, pending=6.1, arrived=7.0, ended=7.5)
    pending = a_record(number=1, issued=8.0, pending=8.1)
    told = timeline(a_job(a_rank(0, last=[ended, pending], pending=[pending])), [0], 5.0)
    assert told["lines"] == ["all_reduce #0", "train.py:41 in main", "all_reduce #1"]
    assert lane(told) == [
        [-4.0, -2.5, -3.0, "ended", 0, 1, 1, 0],
        [-2.0, 0.0, 0.0, "pending", 2, 1, 1, 0],
    ]
    assert told["ranks"][0]["known"] == -5.0


def test_only_wanted_ranks_and_seconds() -> None:
    records = [
        a_record(number=number, issued=float(number), pending=float(number), ended=number + 0.5)
        for number in range(1, 10)
    ]
    told = timeline(a_job(*(a_rank(rank, last=records) for rank in range(3))), [2, 7], 3.2)
    assert [one["rank"] for one in told["ranks"]] == [2]
    assert [told["lines"][span[4]] for span in lane(told)] == [
        "all_reduce #7",
        "all_reduce #8",
        "all_reduce #9",
    ]


@pytest.mark.parametrize("count", [1000, 3000])
def test_the_answer_is_as_large_as_the_picture(count: int) -> None:
    records = [a_record(number=number, issued=9.0 + number / count / 10) for number in range(count)]
    told = timeline(a_job(a_rank(0, last=records)), [0], 10.0, most=count)
    assert len(lane(told)) <= FINEST // 10
    assert sum(span[6] for span in lane(told)) == count
    assert {span[3] for span in lane(told)} == {"many"}


def test_what_is_older_than_the_recorder_reaches_is_said() -> None:
    records = [a_record(number=number, issued=8.0 + number / 100) for number in range(100)]
    told = timeline(a_job(a_rank(0, last=records)), [0], 10.0, most=50)
    assert told["ranks"][0]["known"] == -1.5


def test_operations_at_the_same_time_lie_one_below_the_other() -> None:
    records = [
        a_record(number=number, issued=5.0 + number / 10, pending=5.5, ended=9.0) for number in range(3)
    ]
    told = timeline(a_job(a_rank(0, last=records)), [0], 10.0)
    assert [span[7] for span in lane(told)] == [0, 1, 2]


def test_ranks_are_on_one_clock() -> None:
    record = a_record(number=0, issued=6.0, pending=6.1, ended=7.5)
    there = replace(a_rank(1, last=[record]), shift=-1.0, error=0.25)
    told = timeline(a_job(a_rank(0, last=[record]), there), [0, 1], 10.0)
    assert lane(told, 1)[0][:2] == [-5.0, -3.5] and told["error"] == 0.25
