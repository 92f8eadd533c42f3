"""What a page is sent: all of it, then what has changed, and together they are what there is."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.history import HistoryEntry
from aiodist.observe.page import COLUMNS, Page, change, page, whole
from aiodist.observe.recorder.reading import Vitals
from aiodist.observe.summary import summary
from aiodist.observe.verdict import Verdict
from tests.observe.made import a_job, a_record, a_sum
from tests.observe.made import a_rank as at_twenty
from tests.observe.shown import apply

a_rank = partial(at_twenty, now=10.0, began=0.0)

CELL = st.none() | st.integers(0, 3) | st.text(max_size=2)
ROWS = st.dictionaries(st.integers(0, 5), st.tuples(CELL, CELL), max_size=4)
PAGES = st.builds(
    lambda rows, parts: Page(parts, {rank: (rank, *cells) for rank, cells in sorted(rows.items())}),
    ROWS,
    st.fixed_dictionaries({"job": st.integers(0, 2), "news": st.lists(CELL, max_size=2)}),
)


@given(PAGES, PAGES)
def test_what_there_was_and_the_change_is_what_there_is(before: Page, now: Page) -> None:
    shown = json.loads(json.dumps(whole(before)))
    assert apply(shown, json.loads(json.dumps(change(before, now)))) == json.loads(json.dumps(whole(now)))


@given(PAGES)
def test_nothing_is_sent_where_nothing_has_changed(now: Page) -> None:
    assert change(now, now) == {}


def test_one_cell_is_sent_alone() -> None:
    before, now = a_rank(1), a_rank(1, vitals=Vitals(10.0, 1, 10.0, 0.25))
    one, other = (page(summary(None, a_job(a_rank(0), view), ()), ()) for view in (before, now))
    assert change(one, other) == {
        "totals": other.parts["totals"],
        "cells": [[1, COLUMNS.index("late"), 0.25]],
    }


def test_numbers_are_rounded_to_what_is_shown() -> None:
    views = [
        a_rank(0, now=now, vitals=Vitals(now, 1, now, 0.0, issued), sums=[a_sum(issued, 1000)])
        for now, issued in ((10.0, 0), (13.0, 10_000))
    ]
    found = page(summary(a_job(views[0]), a_job(views[1]), ()), ())
    row = dict(zip(COLUMNS, found.rows[0], strict=True))
    assert (row["ops"], row["nbytes"]) == (3330.0, 3.33e6)


def test_foreign_text_is_one_line() -> None:
    nasty = "a\x1b[2J\nb\u202e" + "x" * 1000
    verdict = Verdict("late", (1,), nasty, (f"    {nasty}",), nasty)
    view = replace(a_rank(0, pending=[a_record(nasty, 0, 1.0)], about={"argv": [nasty]}), host=nasty)
    found = page(summary(None, a_job(view), (verdict,)), [HistoryEntry(1.0, "event", nasty)])
    told = json.dumps(whole(found), ensure_ascii=False)
    assert "\\u001b" not in told and "\\n" not in told and "\u202e" not in told
    assert len(told) < 6000
    assert found.parts["verdicts"][0]["lines"][0].startswith("    a")
