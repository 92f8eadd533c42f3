"""What a terminal shows of a job, whatever its size, and whatever ranks call themselves."""
# ruff: noqa: E501

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("rich", reason="the view in the terminal needs rich")

from rich.console import Console

from aiodist.observe.recorder.reading import Event, Group, Line, Vitals
from aiodist.observe.screen import plain, screen
from aiodist.observe.summary import Summary, summary
from aiodist.observe.verdict import Verdict
from tests.levels import COSTLY
from tests.observe.made import a_job, a_rank, a_record, a_sum


def of(ranks: int = 4, **more: Any) -> Summary:
    before = a_job(*(a_rank(rank, now=9.0, began=0.0, vitals=Vitals(9.0, 1, 9.0)) for rank in range(ranks)))
    sums = [a_sum(1000, 10**6, 0.25)]
    ranks_now = (
        a_rank(
            rank,
            now=10.0,
            began=0.0,
            vitals=Vitals(10.0, 1, 10.0, 0.012, 1000, 1),
            sums=sums,
            memory=59 * 10**6,
            **more,
        )
        for rank in range(ranks)
    )
    return summary(before, a_job(*ranks_now))


def lines(job: Summary, width: int = 120, height: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height or 1000, color_system=None)
    with console.capture() as taken:
        console.print(screen(job, width, height))
    return [line.rstrip() for line in taken.get().splitlines()]


def test_a_job_in_lines() -> None:
    waiting = a_record(number=7, issued=4.0)
    job = of(2, pending=[waiting], events=[Event(8.0, "lost a peer")])
    assert plain(job, 120).splitlines() == [
        "train.py  job cafe  2 of 4 ranks  host host-a  epoch 0  since 10 s",
        "2 waiting  2000 operations, 2 failed",
        "rank process state         operation                                       ops/s bytes/s  wait    lag memory   cpu epoch",
        "   0 4000    waiting 6.0 s all_reduce #7 train.py:41 in main                 1 k    1 GB 100 %  12 ms  59 MB   0 %     0",
        "   1 4001    waiting 6.0 s all_reduce #7 train.py:41 in main                 1 k    1 GB 100 %  12 ms  59 MB   0 %     0",
        "             all           2 waiting                                         2 k    2 GB 100 %  12 ms 118 MB   0 %",
        "2.0 s ago, rank 0: lost a peer",
    ]


def test_a_narrow_terminal_shows_the_operation() -> None:
    shown = lines(of(2, last=[a_record(number=7)]), 80)
    assert max(map(len, shown)) <= 80
    assert "(all_reduce #7 train.py:41 in" in shown[3]
    assert "ops/s" in shown[2] and "epoch" not in shown[2]


def test_a_group_and_a_host_of_ones_own_are_named() -> None:
    half = a_record(number=7, group=Group("halves", 0, range(2)), line=None)
    job = summary(None, a_job(a_rank(0, last=[half]), replace(a_rank(1), host="there")))
    shown = lines(job)
    assert "2 hosts" in shown[0]
    assert "host-a:4000" in shown[3] and "(all_reduce #7 of halves)" in shown[3]
    assert "there:4001" in shown[4]


def test_with_more_ranks_than_lines_the_worst_come_first() -> None:
    ranks = [a_rank(rank, alive=rank != 70) for rank in range(100)]
    shown = lines(summary(None, a_job(*ranks)), height=24)
    assert len(shown) == 24
    assert shown[3].split()[:3] == ["70", "4070", "dead"]
    assert shown[4].split()[0] == "0"
    assert "81 more" in shown[-2] and "81 running" in shown[-2]
    assert "99 running, 1 dead" in shown[-1]


def test_verdicts_are_shown() -> None:
    verdict = Verdict("blocked", (3,), "rank 3 blocks its loop", ("since a minute", "at train.py:3"), "3")
    job = replace(of(2), verdicts=(verdict,))
    assert lines(job)[-3:] == ["rank 3 blocks its loop", "  since a minute", "  at train.py:3"]
    assert job.trouble == "rank 3 blocks its loop"


def test_trouble() -> None:
    assert of(1).trouble == ""
    assert of(1, events=[Event(8.0, "hm")]).trouble == "rank 0: hm"
    failed = a_record(number=3, ended=7.0, failed=True)
    told = of(1, events=[Event(8.0, "hm")], last=[failed])
    assert told.trouble == "rank 0: all_reduce #3 has failed at train.py:41 in main"
    assert told.to_json()["rows"][0]["failed"] == 1


def test_a_terminal_with_colours_gets_them() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    with console.capture() as taken:
        console.print(screen(of(2), 80))
    assert "\x1b[32m" in taken.get()


strange = st.text(min_size=1, max_size=30)


@pytest.mark.slow(COSTLY)
@given(strange, st.integers(40, 200), st.integers(8, 60), st.integers(1, 40))
def test_nothing_that_ranks_say_moves_the_cursor(text: str, width: int, height: int, ranks: int) -> None:
    record = a_record(text, 0, group=Group(text, 0, range(4)), line=Line(text, 3, text))
    job = of(ranks, last=[record], events=[Event(9.0, text)], about={"argv": [f"[bold]\x1b[2J{text}"]})
    shown = lines(replace(job, hosts=(text, "b"), rows=tuple(replace(row, host=text) for row in job.rows)))
    assert not any("\x1b" in line for line in shown)
    assert "[bold]" in shown[0] or "/" in text  # only what follows the last one is the script's name
    assert len(lines(job, width, height)) <= height


def test_calls_without_an_answer_have_a_column_where_there_are_any() -> None:
    told = {"calls": {"asked": 12, "served": 3, "to": [], "room": [], "full": [], "within": []}}
    text = plain(summary(None, a_job(a_rank(0, about=told), a_rank(1))), 160)
    assert "12 calls without an answer" in text
    assert "asks/serves" in text and "12/3" in text and "0/0" in text
    assert "asks/serves" not in plain(summary(None, a_job(a_rank(0), a_rank(1))), 160)
