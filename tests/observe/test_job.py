"""Real jobs: what they leave when they die, what they say when they stand still, and that nothing stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aiodist.observe.dumps import read_job
from aiodist.observe.explain import explain
from aiodist.observe.recorder.records import SHARED_MEMORY
from aiodist.observe.view import Doing, JobView
from benchmarks.deaths.staged.stage import ALL, AbsentError, Staged, stage
from tests.levels import COSTLY

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux"),
    pytest.mark.timeout(200),
]

PROGRAM = """
import asyncio, os, signal, sys
import numpy as np
import aiodist as dist

async def main():
    pg = await dist.init_process_group()
    x = np.full(100, pg.rank + 1.0, np.float32)
    for _ in range(3):
        await pg.all_reduce(x)
    await asyncio.sleep(0.5)  # what was done is written ten times a second
    if pg.rank == 1 and sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if pg.rank == 1 and sys.argv[1] == "raised":
        raise ValueError("bad data")
    await pg.all_reduce(x)
    if sys.argv[1] == "left":
        return
    await dist.destroy_process_group()

asyncio.run(main())
"""


def run(tmp_path: Path, how: str, *options: str) -> tuple[int, str]:
    """A job of three ranks → its exit code, and what it wrote."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=3", *options, str(program), how]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    return done.returncode, done.stdout + done.stderr


def remains(output: str) -> list[str]:
    """What processes that are named in the output have left in shared memory."""
    folder = SHARED_MEMORY / f"aiodist-{os.geteuid()}"
    return [name for name in os.listdir(folder) if name.split(".")[1] in output] if folder.is_dir() else []


def the_dump(tmp_path: Path) -> JobView:
    (folder,) = (path for path in (tmp_path / "state/aiodist/jobs").iterdir() if path.is_dir())
    return read_job(folder)


@pytest.mark.slow(COSTLY)
def test_a_killed_rank_is_explained_from_what_all_have_left(tmp_path: Path) -> None:
    code, output = run(tmp_path, "killed")
    assert code == 137
    assert "what the ranks did last: aiodist explain " in output
    job = the_dump(tmp_path)
    assert [rank.rank for rank in job.ranks] == [0, 1, 2]
    assert job.ranks[1].doing is Doing.dead
    assert [(record.op, record.number) for record in job.ranks[1].recording.last][-1] == ("all_reduce", 3)
    lines = explain(job, (), "trace")
    assert "rank 1 died first" in lines[0]
    assert lines[1].startswith("rank 1 (") and "all_reduce" in lines[1]
    assert remains(" ".join(str(rank.recording.pid) for rank in job.ranks)) == []


@pytest.mark.slow(COSTLY)
def test_the_error_that_ended_a_rank_is_in_its_record(tmp_path: Path) -> None:
    code, output = run(tmp_path, "raised", f"--log-dir={tmp_path / 'logs'}")
    assert code == 1
    (folder,) = (tmp_path / "logs").iterdir()
    assert f"aiodist explain {folder}" in output
    job = read_job(folder)
    assert "the program ended by ValueError: bad data" in job.ranks[1].recording.events[-1].text
    assert "rank 1 died first" in explain(job, (), "trace")[0]
    assert not (tmp_path / "state").exists()


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("how", ["well", "left"])
def test_a_job_that_ends_well_leaves_nothing(tmp_path: Path, how: str) -> None:
    before = set(remains(""))
    code, output = run(tmp_path, how)
    assert code == 0
    assert "aiodist explain" not in output
    assert not (tmp_path / "state").exists()
    folder = SHARED_MEMORY / f"aiodist-{os.geteuid()}"
    assert before is not None
    assert folder.is_dir()


SLOW = pytest.mark.slow("more of the same: a staged problem each")


@pytest.mark.parametrize(
    "problem", [pytest.param(one, id=one.name, marks=() if one.name == "held" else SLOW) for one in ALL]
)
def test_a_staged_problem_is_told_right(problem: Staged) -> None:
    if problem.name == "link" and shutil.which("tc") is None:
        pytest.skip("no tc here")
    try:
        told = stage(problem)
    except AbsentError as absent:
        pytest.skip(str(absent))
    assert told.missing == (), told.box
