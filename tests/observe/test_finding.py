"""Which dump is meant by a folder: that of a job, of a launcher's run, of many runs, of several hosts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from aiodist.base.errors import UsageError
from aiodist.observe import RankView
from aiodist.observe.dumps import open_given, read_dump, read_job, write, write_outcome
from aiodist.observe.finding import find, has_ranks
from aiodist.observe.outcome import Outcome
from tests.observe.made import a_rank


def a_rank_of(run: str, key: str, rank: int, began: float = 1.0) -> RankView:
    view = a_rank(rank, about={"argv": ["train.py"], "run": run}, began=began)
    return replace(view, key=key)


def put(folder: Path, view: RankView, at: float) -> None:
    """Write a rank as at this time of day."""
    with open_given(folder) as opened:
        file = write(opened, view)
    os.utime(file, (at, at))


def end(folder: Path, run: str, at: float) -> Outcome:
    outcome = Outcome(run, "train.py", 2, 1, at, f"rank 1 of {run} failed first", 1)
    with open_given(folder) as opened:
        write_outcome(opened, outcome)
    return outcome


def test_a_run_is_found_from_above_and_from_below(tmp_path: Path) -> None:
    run = tmp_path / "logs" / "job_r"
    for rank in (0, 1):
        put(run / "cafe", a_rank_of("r", "cafe", rank), 100.0)
    outcome = end(run, "r", 101.0)
    for folder in (tmp_path, tmp_path / "logs", run, run / "cafe"):
        dump = read_dump(folder)
        assert dump.job is not None and [rank.rank for rank in dump.job.ranks] == [0, 1]
        assert dump.outcome == outcome and dump.older == 0
    assert has_ranks(run) and not has_ranks(tmp_path / "none")


def test_of_runs_of_one_name_the_newest_is_read_and_none_is_mixed_with_it(tmp_path: Path) -> None:
    for number, run in enumerate(("old", "new")):
        for rank in range(4 - 2 * number):
            put(tmp_path / f"job_{run}" / f"key{run}", a_rank_of(run, f"key{run}", rank), 100.0 + number)
        end(tmp_path / f"job_{run}", run, 200.0 + number)
    dump = read_dump(tmp_path)
    assert dump.job is not None and [rank.rank for rank in dump.job.ranks] == [0, 1]
    assert dump.outcome is not None and dump.outcome.run == "new" and dump.older == 1
    assert read_job(tmp_path).key == "keynew"


def test_of_the_attempts_of_a_run_the_last_is_read(tmp_path: Path) -> None:
    put(tmp_path / "one", a_rank_of("r", "one", 2, began=1.0), 100.0)
    put(tmp_path / "two", a_rank_of("r", "two", 0, began=9.0), 90.0)
    assert [rank.rank for rank in read_job(tmp_path).ranks] == [2], "without an outcome each is by itself"
    end(tmp_path, "r", 101.0)
    assert [rank.rank for rank in read_job(tmp_path).ranks] == [0]


def test_what_several_hosts_have_left_of_a_job_is_one(tmp_path: Path) -> None:
    """Each node's launcher has a folder of its own in a folder that all of them see."""
    for rank in (0, 1):
        put(tmp_path / f"job_{rank}" / "cafe", a_rank_of("r", "cafe", rank), 100.0 + rank)
        end(tmp_path / f"job_{rank}", "r", 102.0 + rank)
    dump = read_dump(tmp_path)
    assert dump.job is not None and [rank.rank for rank in dump.job.ranks] == [0, 1]
    assert dump.outcome is not None and dump.older == 0


def test_an_outcome_of_another_run_is_not_taken(tmp_path: Path) -> None:
    put(tmp_path / "cafe", a_rank_of("r", "cafe", 0), 100.0)
    end(tmp_path, "another", 99.0)
    assert read_dump(tmp_path / "cafe").outcome is None


def test_a_run_without_ranks_has_its_outcome(tmp_path: Path) -> None:
    end(tmp_path / "job", "r", 100.0)
    dump = read_dump(tmp_path)
    assert dump.job is None and dump.outcome is not None
    with pytest.raises(UsageError, match=r"no rank has written.*rank 1 of r failed first"):
        read_job(tmp_path)


def test_where_there_is_no_dump_it_is_said_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"no rank has written to .*Name the folder that --log-dir was given"
    ):
        read_dump(tmp_path)
    (tmp_path / "job" / "attempt_0" / "0").mkdir(parents=True)
    with pytest.raises(UsageError, match="it has logs: a job that runs, or has ended well, leaves no dump"):
        read_dump(tmp_path)


def test_what_is_no_outcome_is_passed_over_and_no_link_is_followed(tmp_path: Path) -> None:
    put(tmp_path / "cafe", a_rank_of("r", "cafe", 0), 100.0)
    (tmp_path / "outcome.json").write_text("[1]")
    os.mkfifo(tmp_path / "cafe" / "outcome.json")
    (tmp_path / "cafe" / "round").symlink_to(tmp_path)
    runs, logs = find(tmp_path)
    assert [len(run.ranks) for run in runs] == [1] and not logs
    assert read_dump(tmp_path).outcome is None
