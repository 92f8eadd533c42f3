"""`aiodist trace` of a real job; what it does with a dump is in tests/observe/test_trace.py."""

from __future__ import annotations

import json
import os
import pickle
import stat
import sys
from pathlib import Path

import pytest

from aiodist.cli.main import main
from tests.observe.format import check

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux")


def test_a_job_that_runs(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "trace.json"
    assert main(["trace", job, "-o", str(output)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{output}: ") and "of 2 ranks" in said and "times within 0 µs" in said
    made = json.loads(output.read_text())
    check(made)
    names = {event["name"] for event in made["traceEvents"] if event["ph"] == "X"}
    assert {"all_reduce", "send", "recv"} <= {name.split()[0] for name in names}
    flows = [event for event in made["traceEvents"] if event["ph"] == "s"]
    assert sum(event["name"] == "message" for event in flows) == 3


def test_the_last_seconds_of_it(job: str, tmp_path: Path) -> None:
    sizes = []
    for seconds in ("0.3", "1000"):
        output = tmp_path / f"{seconds}.json"
        assert main(["trace", job, "-o", str(output), "--seconds", seconds]) == 0
        check(json.loads(output.read_text()))
        sizes.append(output.stat().st_size)
    assert sizes[0] < sizes[1]


def test_for_torchs_analyzer(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "flight"
    assert main(["trace", job, "--format", "torch", "-o", str(folder)]) == 0
    assert "collectives of 2 ranks" in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["rank_0", "rank_1"]
    dumps = [pickle.loads((folder / f"rank_{rank}").read_bytes()) for rank in range(2)]
    assert len(dumps[0]["entries"]) == len(dumps[1]["entries"]) > 20
    assert main(["trace", job, "--format", "torch", "-o", str(folder)]) == 2
    assert "Name a new folder with -o" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_seconds_that_are_none(seconds: str, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", job, "--seconds", seconds]) == 2
    assert "is not a time" in capsys.readouterr().err


def test_a_place_that_takes_no_file(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for output, kind in (("/dev/full", "json"), (str(tmp_path), "json"), (str(tmp_path / "a/b"), "torch")):
        assert main(["trace", job, "-o", output, "--format", kind]) == 1
        err = capsys.readouterr().err
        assert err.startswith("aiodist trace: error: cannot write")
        assert len(err.splitlines()) == 1
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
