"""What a rank does for others in the watchdog's thread: it writes, and one rank of each host judges, once."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aiodist.base.environment.clock import clock_id
from aiodist.net.traffic import Traffic
from aiodist.observe import watcher
from aiodist.observe.recorder import Record, read, records
from aiodist.observe.recorder.reading import Group
from aiodist.observe.view import RankView
from aiodist.observe.watcher import Watcher
from tests.observe.made import a_rank, a_record
from tests.observe.recorded import KEY, Rank, recording
from tests.observe.recorder.made import a_call

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")

Make = Callable[..., Rank]


class Elsewhere:
    """Stands for the exchange with other hosts: what these show, and how often they were asked."""

    def __init__(self) -> None:
        self.views: list[RankView] = []
        self.polls = self.gathered = 0

    def poll(self) -> None:
        self.polls += 1

    def gather(self, views: list[RankView], most: int = 0, *, stacks: bool = True) -> list[RankView]:
        self.gathered += 1
        return views + self.views


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(watcher, "ask", lambda views, only: views)  # nobody here could answer
    with recording(tmp_path, monkeypatch.setattr) as makes:
        yield makes


def watch(rank: Rank, after: float = 30.0, elsewhere: Elsewhere | None = None, **more: Any) -> Watcher:
    exchange: Any = elsewhere or Elsewhere()
    answer = more.pop("answer", lambda: None)
    return Watcher(rank.recorder, rank.memory, KEY, after, answer=answer, exchange=exchange)


def beat(watching: Watcher, turns: int = 5) -> None:
    """Look at the others once, and see the judging through."""
    watching._due = 0.0
    watching.beat(turns, list, 0.25)
    if watching._judging is not None:
        watching._judging.join()


def boxes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_it_writes_down_how_the_process_goes(make: Make) -> None:
    rank = make()
    answers: list[int] = []
    watching = watch(rank, answer=lambda: answers.append(1))
    watching.beat(7, lambda: [(1, Traffic(4096, 0.5, 0.01, 2))], 0.25)
    found = read(rank.memory.buffer)
    assert (found.vitals.turns, answers) == (7, [1])
    assert [(link.rank, link.sent, link.again) for link in found.links] == [(1, 4096, 2)]
    watching.beat(8, lambda: pytest.fail("once a second"), 0.25)
    assert read(rank.memory.buffer).vitals.turns == 8


def test_the_lowest_rank_that_writes_judges_and_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    waiting, late = make(0), make(1)
    waiting.wait()
    second = watch(late)
    beat(second)
    assert second._judging is None and boxes(caplog) == []
    first = watch(waiting)
    beat(first)
    (box,) = boxes(caplog)
    assert "all_reduce #0 of world" in box and "for rank 1" in box
    first._judge_due = 0.0
    beat(first)
    assert len(boxes(caplog)) == 1
    waiting.flush(behind=10.0)  # it is held
    beat(second)
    assert second._judging is not None


def test_who_knows_a_lower_one_that_writes_looks_at_that_one_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [make(rank, 4) for rank in range(4)]
    looked: list[str] = []
    glance_at = records.glance_at

    def counted(folder: Any, name: str) -> Any:
        looked.append(name)
        return glance_at(folder, name)

    monkeypatch.setattr(records, "glance_at", counted)
    monkeypatch.setattr(watcher, "glance_at", counted)
    last = watch(ranks[3])
    beat(last)  # it knows nobody yet
    lower = last._lower
    assert len(looked) == 4 and lower != ranks[3].memory.name
    looked.clear()
    beat(last)
    assert looked == [lower]
    for rank in ranks[:3]:  # they are held, but for the second
        rank.flush(behind=0.0 if rank is ranks[1] else 10.0)
    beat(last)
    assert last._lower == ranks[1].memory.name
    ranks[1].memory.remove()  # it leaves
    beat(last)
    assert last._lower == ""  # there is nobody else to judge now


def test_what_happens_again_at_the_same_line_is_told_when_it_lasts_for_twice_as_long(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = make(0)
    make(1)
    watching = watch(waiting)

    def after(number: int, seconds: float) -> int:
        pending = waiting.wait(number, seconds)
        watching._judge_due = 0.0
        beat(watching)
        waiting.end(pending)
        return len(boxes(caplog))

    lasting = [31.0, 40.0, 65.0, 70.0, 125.0, 135.0]
    assert [after(number, seconds) for number, seconds in enumerate(lasting)] == [1, 1, 2, 2, 2, 3]


def test_something_else_is_told_anew(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    waiting, late = make(0), make(1)
    waiting.wait()
    watching = watch(waiting)
    beat(watching)
    late.wait(7, seconds=50.0)  # another point of its program
    watching._judge_due = 0.0
    beat(watching)
    assert len(boxes(caplog)) == 2


def test_what_is_over_is_told_again_when_it_comes_again(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    waiting = make(0)
    make(1)
    waiting.wait()
    watching = watch(waiting)
    beat(watching)
    for again in (False, True):
        waiting.recorder.pending.clear()
        if again:
            waiting.wait(seconds=500.0)  # what comes again at a line has to hold longer
        waiting.flush()
        watching._judge_due = watching._slow_due = 0.0
        watching.judge(0)
    assert len(boxes(caplog)) == 2


def test_what_is_remembered_of_what_was_told_is_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "MOST_SAID", 3)
    waiting, late = make(0), make(1)
    waiting.wait()
    watching = watch(waiting)
    for number in range(5):
        late.recorder.pending.clear()
        late.wait(7 + number, seconds=50.0)
        watching.judge(0)
    assert 0 < len(watching._said) <= 3


@pytest.mark.parametrize(("after", "seconds"), [(0.0, 60.0), (30.0, 20.0)])
def test_nothing_is_said(after: float, seconds: float, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    waiting = make(0)
    make(1)
    waiting.wait(seconds=seconds)
    watching = watch(waiting, after)
    beat(watching)
    assert watching._judging is None
    assert boxes(caplog) == []


def test_other_hosts_are_asked_where_there_are_some(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    waiting = make(0)
    waiting.wait()
    elsewhere = Elsewhere()
    late = a_rank(1, now=90.0, size=2, host="elsewhere")
    elsewhere.views = [RankView("elsewhere", KEY, late.recording, 90.0)]
    beat(watch(waiting, elsewhere=elsewhere))
    assert (elsewhere.polls, elsewhere.gathered) == (1, 1)
    (box,) = boxes(caplog)
    assert "rank 1 (elsewhere, pid 4001)" in box


@pytest.mark.parametrize("rank", [0, 1])
def test_a_straggler_on_another_host_is_told_by_the_host_of_rank_0(
    rank: int, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its 40 operations came half a second after that of the rank here."""
    here = make(rank)
    began = time.monotonic() - 60.0
    for number in range(40):
        call = a_call(number)
        here.track.note(here.track.sort_of(call), number, sys._getframe(), began + number)
    here.flush()
    there = a_rank(
        1 - rank,
        [a_record_of_two(number, began + number + 0.5) for number in range(40)],
        now=began + 60.0,
        size=2,
        host="elsewhere",
        clock=clock_id(),
        groups=(PAIR,),
    )
    elsewhere = Elsewhere()
    elsewhere.views = [RankView("elsewhere", KEY, there.recording, there.now)]
    watching = watch(here, elsewhere=elsewhere)
    watching._slow_due = 1.0  # long ago
    beat(watching)
    beat(watching)
    assert elsewhere.gathered == (1 - rank)
    told = boxes(caplog)
    assert len(told) == (1 - rank)
    assert not told or "rank 1 came last in 40 of the last 40 operations" in told[0]


def test_of_all_hosts_that_of_the_lowest_rank_that_waits_speaks(make: Make) -> None:
    watching = watch(make(0))
    waits = a_rank(2, pending=[a_record_of_two()], host="there")
    views = [a_rank(1, host="here"), waits, a_rank(3, host="here")]
    assert not watching._speaks(views, 1)
    assert watching._speaks(views, 2)
    assert watching._speaks([a_rank(1, host="here"), a_rank(2, host="there")], 1)


PAIR = Group("world", 0, range(2))


def a_record_of_two(number: int = 0, issued: float = 10.0) -> Record:
    return a_record(number=number, issued=issued, group=PAIR)


def test_what_goes_wrong_while_it_judges_disturbs_nobody(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = make(0)
    waiting.wait()
    watching = watch(waiting)
    monkeypatch.setattr(watcher, "read_ranks", lambda key: 1 / 0)
    beat(watching)  # an exception of a thread would fail the test
    assert watching._judging is not None
    assert boxes(caplog) == []


def test_a_folder_that_has_gone_and_files_that_are_none(make: Make, tmp_path: Path) -> None:
    waiting = make(0)
    waiting.wait()
    folder = tmp_path / f"aiodist-{os.geteuid()}"
    (folder / f"{KEY}.1.0.0").write_bytes(b"nonsense")
    (folder / f"{KEY}.2.0.0").symlink_to("/etc/passwd")
    watching = watch(waiting)
    beat(watching)
    assert watching._judging is not None
    for entry in folder.iterdir():
        entry.unlink()
    folder.rmdir()
    beat(watching)


def test_calls_of_other_ranks_that_wait_for_each_other_are_told(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The rank that judges has none, and waits for nothing."""
    judging, *others = (make(rank, 3) for rank in range(3))
    long_ago = time.monotonic() - 100
    for rank, to in zip(others, (2, 1), strict=True):
        to_it = [[to, "back", long_ago, 1]]
        told = {"asked": 1, "served": 1, "room": [], "full": [["back", long_ago, 1]]}
        rank.recorder.tell(calls={**told, "to": to_it, "within": [["back", *to_it[0]]]})
        rank.flush()
    judging.flush()
    watching = watch(judging)
    beat(watching)
    assert boxes(caplog) == []
    watching._slow_due = time.monotonic()
    beat(watching)
    (box,) = boxes(caplog)
    assert "ranks 1 and 2 wait for each other's answers" in box
