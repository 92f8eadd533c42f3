"""`aiodist stacks`: what each rank of a real job does now, at which line, with asyncio's tasks."""

from __future__ import annotations

import json
import sys

import pytest

from aiodist.cli.main import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux")


def test_all_ranks_of_a_job(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks", job.removesuffix(".py")]) == 0
    out = capsys.readouterr().out
    parts = out.split("\n\n")
    assert [part.split(",")[0] for part in parts] == ["rank 0", "rank 1"]
    for part in parts:
        assert "the event loop's thread" in part
        assert "on the side: waits_for_ever" in part
        assert f"{job}:" in part and "in main" in part


def test_one_rank_for_machines(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks", job, "1", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["rank"] == 1
    assert told["doing"] in ("running", "waiting")
    assert any("waits_for_ever" in line for line in told["stacks"]["tasks"])


@pytest.mark.parametrize("rank", ["7", "-1"])
def test_a_rank_that_there_is_not(rank: str, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks", job, "--", rank]) == 2
    err = capsys.readouterr().err
    assert f"no rank {rank} of observed" in err and "Seen: ranks 0 and 1" in err
    assert len(err.splitlines()) == 1


def test_a_job_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks", "\x1b[2Jno such job\n"]) == 2
    err = capsys.readouterr().err
    assert "there is no job" in err
    assert "\x1b" not in err and len(err.splitlines()) == 1
