"""One rank as lines: what it does, or why that is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aiodist.observe.rank_lines import rank_lines
from aiodist.observe.view import Stacks
from tests.observe.made import a_rank, a_record


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"alive": False}, "it has ended"),
        ({"left": 3.0}, "it has ended"),
        ({"stopped": True}, "it is stopped by a signal or a debugger: `kill -CONT` lets it go on"),
        ({"host": "elsewhere"}, "it is on another host: ask there"),
        ({}, "it has not answered"),
    ],
)
def test_why_nothing_is_told(more: dict[str, bool], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodist.observe.rank_lines.host_name", lambda: "host-a")
    view = a_rank(0, **more)  # type: ignore[arg-type]
    assert list(rank_lines(view))[-1] == f"  {why}"


def test_what_pends_is_told_and_no_terminal_takes_orders() -> None:
    group = a_record("\x1b[2J", 4, 10.0)
    lines = list(rank_lines(a_rank(0, pending=[group], host="\x1b[31mhost")))
    assert lines[0] == "rank 0, [31mhost:4000: waiting for 10 s"
    assert lines[1].endswith("#4 at train.py:41 in main is pending for 10 s")
    assert not any("\x1b" in line for line in lines)


def test_tasks_keep_their_indents() -> None:
    view = replace(a_rank(0), stacks=Stacks(tasks=("main: work", "    inner: deeper")))
    assert list(rank_lines(view))[-2:] == ["    main: work", "        inner: deeper"]
