"""A rank's operations as spans of time: none ends before it begins, and each is told once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.recorder import Record
from aiodist.observe.recorder.reading import Vitals
from aiodist.observe.spans import BRIEF, present, spans
from tests.observe.made import a_rank, a_record


@pytest.mark.parametrize(
    ("more", "pending", "state", "end"),
    [
        ({}, False, "brief", 10.0 + BRIEF),
        ({"ended": 12.0}, False, "ended", 12.0),
        ({"ended": 12.0, "failed": True}, False, "failed", 12.0),
        ({"pending": 10.1}, True, "pending", 20.0),
        ({"ended": 10.0}, False, "ended", 10.0 + BRIEF),
    ],
)
def test_how_an_operation_ended(more: dict[str, Any], pending: bool, state: str, end: float) -> None:
    record = a_record(**more)
    (span,) = spans(a_rank(3, [record], pending=[record] if pending else []))
    assert (span.rank, span.start, span.end, span.state) == (3, 10.0, end, state)


def test_what_pends_and_is_in_no_ring_any_more_is_told_too() -> None:
    old = a_record(number=1, pending=10.1)
    found = spans(a_rank(0, [a_record(number=9, issued=15.0)], pending=[old]))
    assert [(span.record.number, span.state) for span in found] == [(1, "pending"), (9, "brief")]


def test_what_has_ended_since_the_list_of_pending_ones_was_written_has_ended() -> None:
    ended = a_record(pending=10.1, ended=12.0)
    (span,) = spans(a_rank(0, [ended], pending=[a_record(pending=10.1)]))
    assert (span.state, span.end) == ("ended", 12.0)


def test_of_the_dead_nothing_is_known_after_their_last_sign() -> None:
    record = a_record(pending=10.1)
    view = a_rank(0, [record], pending=[record], vitals=Vitals(13.0, 1, 13.0), alive=False)
    assert present(view) == 13.0
    assert spans(view)[0].end == 13.0
    assert present(a_rank(0)) == 20.0
    assert present(a_rank(0, vitals=Vitals(), alive=False)) == 1.0  # it has written nothing


def test_waiting_is_told_where_it_lies_inside() -> None:
    for arrived, waited in ((11.0, 11.0), (9.0, 0.0), (13.0, 0.0), (0.0, 0.0)):
        (span,) = spans(a_rank(0, [a_record(arrived=arrived, ended=12.0)]))
        assert span.waited == waited
    (span,) = spans(a_rank(0, [a_record(first=11.5, ended=12.0)]))
    assert span.waited == 11.5


def test_a_span_is_moved_as_a_whole() -> None:
    (span,) = spans(a_rank(0, [a_record(arrived=11.0, ended=12.0)]))
    span.move(-3.0)
    assert (span.start, span.waited, span.end) == (7.0, 8.0, 9.0)
    (brief,) = spans(a_rank(0, [a_record()]))
    brief.move(1.0)
    assert brief.waited == 0.0


times = st.floats(0.5, 40.0) | st.just(0.0)
records = st.builds(
    lambda number, issued, arrived, ended, failed: a_record(
        number=number, issued=issued, arrived=arrived, ended=ended, failed=failed
    ),
    *(st.integers(0, 5), st.floats(0.5, 40.0), times, times, st.booleans()),
)


@given(
    st.lists(records, max_size=9), st.lists(records, max_size=4), st.floats(-50, 50), st.floats(-1e-4, 1e-4)
)
def test_no_span_ends_before_it_begins(
    last: list[Record], pending: list[Record], shift: float, drift: float
) -> None:
    view = a_rank(0, last, pending=pending).placed(shift, 0.1, drift)
    found = spans(view)
    assert [span.start for span in found] == sorted(span.start for span in found)
    for span in found:
        assert span.end > span.start
        assert span.waited == 0.0 or span.start <= span.waited <= span.end
    assert len(found) == len({(one.number, one.issued) for one in (*last, *pending)})
