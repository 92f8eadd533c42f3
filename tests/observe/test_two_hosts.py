"""A job on two hosts, which share neither network nor memory: each shows all of it, by the job's store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aiodist.base.errors
from aiodist.testing.hosts import Hosts

ROOT = Path(aiodist.__file__).parents[1]
AIODIST = [sys.executable, "-m", "aiodist"]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's"),
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.slow("a job on two hosts"),
]

PROGRAM = """
import asyncio
import numpy as np
import aiodist as dist

async def main():
    pg = await dist.init_process_group()
    for _ in range(20):
        await pg.all_reduce(np.full(3, pg.rank + 1.0))
    if pg.rank == 3:
        await asyncio.Event().wait()  # the cause
    await pg.all_reduce(np.full(5, pg.rank + 1.0))

asyncio.run(main())
"""
CAUSE = PROGRAM.splitlines().index("        await asyncio.Event().wait()  # the cause") + 1


class Job:
    """The job, and commands on its hosts. It has a secret of its own, which only its processes know."""

    def __init__(self, hosts: Hosts, program: Path, output: int = subprocess.DEVNULL) -> None:
        meet = f"--nnodes=2 --nproc-per-node=2 --master-addr={hosts.address(0)} --master-port=29444"
        self.agents = []
        for host in range(2):
            agent = [*AIODIST, "run", *meet.split(), f"--node-rank={host}", str(program)]
            own = f'mount -t tmpfs tmpfs /dev/shm && hostname host-{host} && exec "$@"'
            self.agents.append(
                subprocess.Popen(
                    [*hosts.enter(host), *["unshare", "--mount", "--uts", "sh", "-c"], own, "sh", *agent],
                    env=os.environ
                    | {"PYTHONPATH": str(ROOT), "AIODIST_SECRET": "a secret of this job's alone"},
                    stdout=output,
                    stderr=output,
                    text=True,
                )
            )

    def on(self, host: int, *command: str, net: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of aiodist's on a host; where `net` is false, without its network."""
        enter = ["nsenter", "-t", str(self.agents[host].pid), "-m", "-u"]
        enter += ["-n"] if net else ["unshare", "--net"]
        return subprocess.run(
            [*enter, *AIODIST, *command],
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "AIODIST_SECRET": "what another job has as its secret"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def stands(self) -> bool:
        """Whether the ranks of the first host wait for long enough to be told of."""
        found = json.loads(self.on(0, "jobs", "--json").stdout or "[]")
        rows = found[0]["rows"] if found else []
        return len(rows) == 2 and all(row["doing"] == "waiting" and row["since"] > 1.5 for row in rows)

    def close(self) -> None:
        for agent in self.agents:
            agent.send_signal(signal.SIGINT)
        for agent in self.agents:
            agent.wait(60)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """The job, which stands still."""
    program = tmp_path_factory.mktemp("two") / "halves.py"
    program.write_text(PROGRAM)
    try:
        with Hosts(2) as hosts:
            job = Job(hosts, program)
            try:
                while not job.stands():
                    assert all(agent.poll() is None for agent in job.agents), "the job has ended"
                    time.sleep(0.1)
                yield job
            finally:
                job.close()
    except unittest.SkipTest as skipped:
        pytest.skip(str(skipped))


def told(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize("host", [0, 1])
def test_each_host_shows_all_ranks(job: Job, host: int) -> None:
    rows = told(job.on(host, "top", "halves", "--once", "--every=0.2", "--json"))["rows"]
    places = [(row["rank"], row["host"], row["doing"]) for row in rows]
    assert places == [
        *((0, "host-0", "waiting"), (1, "host-0", "waiting")),
        *((2, "host-1", "waiting"), (3, "host-1", "running")),
    ]


def test_what_ranks_of_another_host_do(job: Job) -> None:
    stacks = told(job.on(0, "stacks", "halves", "--json"))
    assert [one["rank"] for one in stacks] == [0, 1, 2, 3]
    assert any(f"halves.py:{CAUSE} in main" in line for line in stacks[3]["stacks"]["tasks"])
    verdict = job.on(0, "explain", "halves").stdout
    assert "all_reduce #21 of world" in verdict
    assert "rank 3 (host-1, pid " in verdict
    assert f"halves.py:{CAUSE} in main" in verdict


def test_without_the_network_there_are_the_ranks_of_the_host_and_the_reason(job: Job) -> None:
    done = job.on(1, "stacks", "halves", "--json", net=False)
    assert done.returncode == 0
    assert [one["rank"] for one in json.loads(done.stdout)] == [2, 3]
    assert done.stderr.startswith("only the ranks of this host are shown: ")
    assert len(done.stderr.splitlines()) == 1


SLOW = """
import asyncio
import numpy as np
import aiodist as dist
from aiodist.observe import watcher

watcher.SLOWLY = 2.0

async def main():
    pg = await dist.init_process_group()
    while True:
        if pg.rank == 2:
            await asyncio.sleep(0.05)
        await pg.all_reduce(np.full(3, pg.rank + 1.0))  # late

asyncio.run(main())
"""


def test_a_straggler_of_another_host_is_told_by_the_job_itself(tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(SLOW)
    line = SLOW.splitlines().index("        await pg.all_reduce(np.full(3, pg.rank + 1.0))  # late") + 1
    try:
        with Hosts(2) as hosts:
            job = Job(hosts, program, subprocess.PIPE)
            try:
                box = ""
                assert job.agents[0].stderr is not None
                for text in job.agents[0].stderr:
                    box += text
                    if "╰" in text:
                        break
            finally:
                for agent in job.agents:
                    agent.send_signal(signal.SIGINT)
                rest = [agent.communicate(timeout=60)[1] for agent in job.agents]
    except unittest.SkipTest as skipped:
        pytest.skip(str(skipped))
    assert "rank 2 came last in" in box
    assert "rank 2 (host-1, pid " in box
    assert f"slow.py:{line} in main" in box
    assert "came last" not in rest[1]  # one host tells it
