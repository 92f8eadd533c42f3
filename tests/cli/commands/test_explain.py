"""`aiodist explain`: of a job that stands still, of one that does not, and of a dump."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import aiodist.base.errors
from aiodist.cli.main import main
from aiodist.observe.dumps import open_given, write
from aiodist.observe.host import read_jobs
from aiodist.observe.view import Doing
from tests.levels import COSTLY
from tests.observe.made import a_rank

ROOT = Path(aiodist.__file__).parents[1]
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux")

PROGRAM = """
import asyncio, sys
import numpy as np
import aiodist as dist

async def main():
    pg = await dist.init_process_group()
    await pg.all_reduce(np.full(3, pg.rank + 1.0))
    if pg.rank == 1 or sys.argv[1] == "rests":
        await asyncio.Event().wait()  # the cause
    await pg.all_reduce(np.full(5, pg.rank + 1.0))

asyncio.run(main())
"""


@contextmanager
def running(program: Path, how: str) -> Iterator[str]:
    """A job of three ranks → its key, as soon as all have issued something."""
    program.write_text(PROGRAM)
    job = subprocess.Popen(
        [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=3", str(program), how],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while job.poll() is None:
            for seen in read_jobs():
                ready = [rank.last is not None for rank in seen.ranks]
                waits = [rank.rank for rank in seen.ranks if rank.doing is Doing.waiting and rank.since > 1.1]
                if seen.name == program.name and ready == [True] * 3 and (how == "rests" or waits == [0, 2]):
                    yield seen.key
                    return
            time.sleep(0.05)
        pytest.fail("the job has ended before it was looked at")
    finally:
        job.send_signal(signal.SIGINT)
        job.wait()


@pytest.mark.slow(COSTLY)
@ON_LINUX
def test_a_job_that_stands_still(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "stands.py"
    with running(program, "waits") as key:
        assert main(["explain", key]) == 0
    out = capsys.readouterr().out
    cause = PROGRAM.splitlines().index("        await asyncio.Event().wait()  # the cause") + 1
    assert "╭─ aiodist: the job stands still" in out
    assert "all_reduce #2 of world" in out.splitlines()[1] and "for rank 1 of 3" in out.splitlines()[1]
    assert f"stands.py:{cause} in main" in out  # from its tasks: it was asked
    assert "ranks 0 and 2 wait in it" in out


@pytest.mark.slow(COSTLY)
@ON_LINUX
def test_a_job_in_which_nothing_stands_still(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path / "rests.py", "rests") as key:
        assert main(["explain", key]) == 0
    out = capsys.readouterr().out
    assert out.startswith("rests.py, 3 ranks on 1 host, since ")
    assert ": nothing stands still\n3 running; 0 operations/s, 0 B/s; 6 operations so far, 0 failed\n" in out
    call = PROGRAM.splitlines().index("    await pg.all_reduce(np.full(3, pg.rank + 1.0))") + 1
    assert f"the last operation: all_reduce #1 of world at rests.py:{call} in main" in out.replace(
        str(tmp_path), ""
    )
    assert f"aiodist trace {key}" in out


def test_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_given(tmp_path / "a dump") as folder:
        write(folder, a_rank(0, alive=False))
    assert main(["explain", str(tmp_path / "a dump")]) == 0
    out = capsys.readouterr().out
    assert f"aiodist trace '{tmp_path}/a dump' -o trace.json" in out
    assert main(["explain", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("aiodist explain: error: cannot read the folder")


def test_no_such_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "no such job"]) == 2
    assert capsys.readouterr().err.startswith("aiodist explain: error: there is no job 'no such job'. ")


@pytest.mark.slow(COSTLY)
def test_commands_that_look_start_without_numpy() -> None:
    code = (
        "import sys; from aiodist.cli.commands import explain, jobs, metrics, stacks, top, trace;"
        "jobs.main([]);"
        # What they need where there is a job:
        "import aiodist.observe.source, aiodist.observe.ask, aiodist.observe.summary;"
        "import aiodist.observe.rank_lines, aiodist.observe.verdict; sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
