"""`aiodist trace` of jobs that run: the digits job, clocks that are set apart, torch's analyzer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import aiodist.base.errors
from aiodist.observe import JobView
from aiodist.observe.clocks import place
from aiodist.observe.host import read_jobs
from tests.levels import COSTLY
from tests.observe.format import check
from tests.ports import free_port

ROOT = Path(aiodist.__file__).parents[1]  # of the library, which may be installed
DIGITS = Path(__file__).parents[2] / "examples" / "train_digits.py"
AHEAD = 5000
"""Seconds by which the second rank's clock is ahead."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")

PROGRAM = """
import asyncio, sys
import numpy as np
import aiodist as dist

async def main():
    pg = await dist.init_process_group()
    other, mine, theirs = 1 - pg.rank, np.ones(1000), np.zeros(1000)
    while True:
        if pg.rank:
            await pg.recv(theirs, other)
            await pg.send(mine, other)
        else:
            await pg.send(mine, other)
            await pg.recv(theirs, other)
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


LEAVES_ONE_OUT = """
import asyncio, sys
import numpy as np
import aiodist as dist

async def main():
    pg = await dist.init_process_group()
    number = 0
    while pg.rank != 1 or number < int(sys.argv[1]):
        await pg.all_reduce(np.ones(10))
        await asyncio.sleep(0.01)
        number += 1
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def started(*commands: list[str], **environ: str) -> Iterator[list[int]]:
    """The pids of processes that are killed in the end, with all that they started."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    running = [
        subprocess.Popen(
            command,
            env=env | {"RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for rank, command in enumerate(commands)
    ]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def held(job: JobView) -> Iterator[None]:
    """Have a job stand still, so that it does not end before it is looked at."""
    for rank in job.ranks:
        os.kill(rank.recording.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for rank in job.ranks:
            os.kill(rank.recording.pid, signal.SIGCONT)


def ancestors(pid: int) -> Iterator[int]:
    """A process, and those that it descends from."""
    while pid > 1:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            return


async def job_of(pids: list[int], holds: Callable[[JobView], bool]) -> JobView:
    """The job of these processes, as soon as something holds of it; the test's time limit bounds it."""
    while not any(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z" for pid in pids):
        for job in read_jobs():
            ours = all(set(pids) & set(ancestors(rank.recording.pid)) for rank in job.ranks)
            if ours and len(job.ranks) == job.size and holds(place(job)):
                return job
        await asyncio.sleep(0.05)
    pytest.fail("the job has ended before it was looked at")


async def said(*command: str) -> str:
    """What a command of Python's prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out
    return out.decode()


async def traced(job: JobView, target: Path) -> Any:
    """What `aiodist trace` writes of a job."""
    await said("-m", "aiodist", "trace", job.key, "-o", str(target))
    made = json.loads(target.read_text())
    check(made)
    return made


@pytest.mark.slow(COSTLY)
async def test_the_digits_job(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    run = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "2"]
    with started([*run, str(DIGITS), "--epochs", "100000"]) as pids:  # it runs until it is killed
        busy = await job_of(pids, lambda job: all(len(rank.recording.last) > 200 for rank in job.ranks))
        with held(busy):
            made = await traced(busy, tmp_path / "trace.json")
    events = made["traceEvents"]
    operations = [event for event in events if event["ph"] == "X" and event["cat"] != "phase"]
    assert {event["pid"] for event in operations} == {0, 1}
    assert "all_reduce" in {event["name"] for event in operations}
    assert any("train_digits.py:" in event["args"]["line"] for event in operations)
    assert made["otherData"]["clock error in seconds, at most"] == 0.0
    assert made["otherData"]["arrows"] > 0


def can_set_clocks_apart() -> bool:
    command = ["unshare", "--time", "--monotonic", "1", "--fork", "true"]
    try:
        return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.slow(COSTLY)
async def test_clocks_that_are_set_apart(tmp_path: Path) -> None:
    if not can_set_clocks_apart():
        pytest.skip("time namespaces need root")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    here = [sys.executable, str(program)]
    apart = ["unshare", "--time", "--monotonic", str(AHEAD), "--fork", *here]
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with started(here, apart, **where) as pids:

        def compared(job: JobView) -> bool:
            return job.ranks[1].error < 0.1 and all(len(r.recording.last) > 200 for r in job.ranks)

        job = await job_of(pids, compared)
        made = await traced(job, tmp_path / "trace.json")
    first, second = made["otherData"]["clocks"]
    assert (first["shift"], first["error"]) == (0.0, 0.0)
    assert 0.0 < second["error"] < 0.1
    assert abs(second["shift"] + AHEAD) <= second["error"]
    assert made["otherData"]["arrows"] > 50
    assert made["otherData"]["arrows left out, since they ran backwards"] == 0


@pytest.mark.slow("torch starts in a process of its own")
@pytest.mark.parametrize("least", [60, 10**9])
async def test_torchs_analyzer_of_a_job_that_runs(least: int, tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.flight_recorder.fr_trace")
    program = tmp_path / "program.py"
    program.write_text(LEAVES_ONE_OUT)
    stalls = least < 1000

    def ready(job: JobView) -> bool:
        if stalls:
            return all(rank.rank == 1 or rank.since > 2.0 for rank in job.ranks)
        return all(len(rank.recording.last) > 100 for rank in job.ranks)

    run = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "3", str(program), str(least)]
    with started(run) as pids:
        job = await job_of(pids, ready)
        folder = str(tmp_path / "torch")
        await said("-m", "aiodist", "trace", job.key, "--format", "torch", "-o", folder)
    told = await said("-m", "torch.distributed.flight_recorder.fr_trace", folder)
    assert ("Not all ranks joining collective" in told) == stalls
    assert ("missing ranks: {1}" in told) == stalls
    assert ("errors" in told) is False
