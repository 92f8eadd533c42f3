"""`aiodist jobs`: a line for each job of this host, whatever lies there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aiodist.cli.main import main
from tests.observe.recorded import KEY, Rank, recording

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux")

Make = Callable[..., Rank]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    with recording(tmp_path, monkeypatch.setattr) as makes:
        yield makes


def test_a_job_of_two_ranks(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["JOB", "SCRIPT", "RANKS"]
    (line,) = (line for line in lines if job in line)
    assert line.split()[2] == "2/2"
    assert line.endswith("none")
    assert main(["jobs", "--json"]) == 0
    (told,) = (one for one in json.loads(capsys.readouterr().out) if one["script"] == job)
    assert told["key"].startswith(line.split()[0])
    assert [row["rank"] for row in told["rows"]] == [0, 1]
    assert all(row["issued"] >= 30 for row in told["rows"])


def test_there_is_none(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs"]) == 0
    assert capsys.readouterr().out == "no job of this user runs on this host\n"
    assert main(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_names_that_would_move_the_cursor_and_long_ones(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = "\x1b[2J\n\x07" + "x" * 500
    rank = make(argv=[strange], job=strange)
    rank.recorder.event(strange)
    rank.flush()
    assert main(["jobs"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3
    assert all(character.isprintable() for line in out.splitlines() for character in line)
    assert max(map(len, out.splitlines())) < 1200


def test_the_dead_are_shown_and_rubbish_is_not(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(0).memory._let_go()
    folder = tmp_path / f"aiodist-{os.geteuid()}"
    for number, rubbish in enumerate((b"", b"x" * (1 << 19), b"\xff" * 100)):
        (folder / f"{KEY}.{number + 2}.0.0").write_bytes(rubbish)
    assert main(["jobs"]) == 0
    (_, line, more) = capsys.readouterr().out.splitlines()
    assert "aiodist dashboard JOB" in more
    assert "1 dead" in line
    assert line.split()[2] == "1/2"
