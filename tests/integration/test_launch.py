"""`aiodist run` and process groups together: who died, in which operation, and that nothing is left."""

from __future__ import annotations

import importlib.util
import os
import re
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.levels import COSTLY, MORE, few
from tests.ports import free_port
from tests.processes import run_to_end, sockets_of

ROOT = Path(__file__).parents[2]
MARKER = "TEST_JOB"
# Rank 0 listens on MASTER_PORT, as torch would; then all meet.
LISTENS = """
import os, socket
import aiodist as dist

async def main():
    if os.environ["RANK"] == "0":
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        listening = socket.create_server(place)
    async with await dist.init_process_group(timeout=60) as pg:
        await pg.barrier()

dist.run(main())
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform")

# Every rank says 'running' once; then rank 1 does what the first argument says.
LOOP = """
import os, signal, sys
import numpy as np
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        tensor = np.full(1000, 10.0 ** pg.rank, np.float32)
        count = 0
        while True:
            await pg.all_reduce(tensor)
            count += 1
            if count == 100:
                print("running", flush=True)
            if count == 200 and pg.rank == 1:
                {then}
{before}
dist.run(main())
"""
# However slow the machine is, these ranks end by what they notice, and not by the launcher's SIGTERM.
UNHURRIED = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


class Job:
    """One agent; its output and its workers' are one stream."""

    def __init__(self, process: subprocess.Popen[str], marker: bytes) -> None:
        self.process = process
        self._marker = marker

    def until(self, text: str, count: int) -> None:
        """Read until `count` lines hold this text."""
        assert self.process.stdout is not None
        seen: list[str] = []
        while sum(text in line for line in seen) < count:
            line = self.process.stdout.readline()
            seen.append(line)
            assert line, f"the job ended early: {''.join(seen)}"

    def end(self) -> tuple[int, str]:
        """Exit code and the rest of the output."""
        assert self.process.stdout is not None
        rest = self.process.stdout.read()
        return self.process.wait(), rest

    def pids(self) -> set[int]:
        """The living processes of the job: agent, spawner, guardians, workers."""
        found = set()
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self._marker in entry.read_bytes():
                    found.add(int(entry.parent.name))
            except OSError:
                continue
        return found

    def all_gone(self, fds: list[int]) -> None:
        """Returns when these processes, by pidfd, have ended; no other of the job may be there."""
        for fd in fds:
            select.select([fd], [], [])
            os.close(fd)
        assert not self.pids()


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    jobs: list[Job] = []
    (tmp_path / "tmp").mkdir()
    (tmp_path / "segment").mkdir()

    def start(script: str | Path, *options: str, arguments: tuple[str, ...] = (), nproc: int) -> Job:
        path = script if isinstance(script, Path) else tmp_path / f"script{len(jobs)}.py"
        if isinstance(script, str):
            path.write_text(script)
        marker = uuid.uuid4().hex
        command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", str(nproc), *options]
        process = subprocess.Popen(
            [*command, str(path), *arguments],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(tmp_path / "tmp"),
                "HOME": str(tmp_path / "segment"),
                MARKER: marker,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        jobs.append(Job(process, f"{MARKER}={marker}".encode()))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
        job.process.communicate()


def loop(then: str = "pass", before: str = "") -> str:
    return LOOP.format(then=then, before=before)


def box_of(output: str) -> str:
    """The verdict, which is the end of the output."""
    box = output[output.index("╭─") :]
    assert box.splitlines()[-1].startswith("╰─"), output
    return box


def test_a_killed_rank_is_named_with_the_operation(start: Start) -> None:
    code, output = start(loop("os.kill(os.getpid(), signal.SIGKILL)", UNHURRIED), nproc=4).end()
    box = box_of(output)
    assert code == 137
    assert box.startswith("╭─ aiodist run: rank 1 failed first ─")
    assert "│ killed by SIGKILL after " in box
    noticed = re.findall(
        r"│ (ranks? .*) noticed: lost rank 1: .* \(in all_reduce #20[01] of group 'world'\)\n", box
    )
    assert sorted(re.findall(r"\d", " ".join(noticed))) == ["0", "2", "3"], box
    lines = re.findall(r"(.*)│ .* in main: PeerLost: lost rank 1: ", output)
    assert sorted(re.findall(r"\d", " ".join(lines))) == ["0", "2", "3"], (
        "the box does not replace the output"
    )
    assert "Traceback" not in output


@pytest.mark.slow(MORE)
def test_a_rank_that_raises_is_shown_with_its_traceback(start: Start) -> None:
    code, output = start(loop("raise ValueError('bad batch')", UNHURRIED), nproc=3).end()
    box = box_of(output)
    assert code == 1
    assert box.startswith("╭─ aiodist run: rank 1 failed first ─")
    assert "│     raise ValueError('bad batch')\n" in box
    assert "│ ValueError: bad batch\n" in box
    assert re.search(
        r"│ ranks? .* noticed: rank 1 aborted the group: ValueError: bad batch \(in all_reduce #", box
    )
    assert box.count("Traceback") == 1, "only that of the culprit"


@pytest.mark.parametrize(
    ("signum", "expected"),
    few(
        [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
        [(signal.SIGKILL, -signal.SIGKILL)],
    ),
)
def test_whatever_ends_the_agent_leaves_nothing(
    start: Start, tmp_path: Path, signum: signal.Signals, expected: int
) -> None:
    job = start(loop(), nproc=3)
    job.until("running", 3)
    pids = job.pids()
    fds = [os.pidfd_open(pid) for pid in pids]
    listening = listening_sockets(pids)
    assert len(pids) == 8, "agent, spawner, three guardians and three workers"
    assert len(listening) >= 4, "the store, and a port of each worker"
    job.process.send_signal(signum)
    code, output = job.end()
    assert code == expected, output
    job.all_gone(fds)
    assert not listening & every_listening_socket()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "segment").iterdir()) == []
    if signum == signal.SIGINT:
        assert "Traceback" not in output, "Ctrl-C is no failure"


def every_listening_socket() -> set[int]:
    """Inodes of all TCP and unix sockets that listen."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                inodes.add(int(fields[9]))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & 0x10000:  # __SO_ACCEPTCON
            inodes.add(int(fields[6]))
    return inodes


def listening_sockets(pids: set[int]) -> set[int]:
    """Those of these processes."""
    return set().union(*map(sockets_of, pids)) & every_listening_socket()


@pytest.mark.slow(COSTLY)
def test_two_agents_are_one_world(start: Start) -> None:
    script = """
import numpy as np
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        total = await pg.all_reduce(np.array([10 ** pg.rank]))
        print(f"total {total[0]} of {pg.size}", flush=True)
dist.run(main())
"""
    port = free_port()
    meet = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    prefix = ["--line-prefix-template", "$rank|"]
    jobs = [start(script, *meet, *prefix, "--node-rank", str(node), nproc=2) for node in range(2)]
    ends = [job.end() for job in jobs]
    assert [end[0] for end in ends] == [0, 0], ends
    lines = sorted(line for _, output in ends for line in output.splitlines())
    assert lines == [f"{rank}|total 1111 of 4" for rank in range(4)]


@pytest.mark.slow(MORE)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_agent_is_missed_by_the_other_node(start: Start, victim: int) -> None:
    port = free_port()
    meet = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    jobs = [start(loop(before=UNHURRIED), *meet, "--node-rank", str(node), nproc=1) for node in range(2)]
    for job in jobs:
        job.until("running", 1)
    jobs[victim].process.kill()
    code, output = jobs[1 - victim].end()
    box = box_of(output)
    assert code == 1
    who = "node 1" if victim else "node 0, which hosts the job,"
    assert box.startswith(f"╭─ aiodist run: {who} was lost ─")
    assert f"│ rank {1 - victim} on " in box and f" noticed: lost rank {victim}: " in box
    assert jobs[victim].end()[0] == -signal.SIGKILL


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="the example needs scikit-learn")
def test_the_example_learns_digits_as_one_process_does(start: Start) -> None:
    example = ROOT / "examples" / "train_digits.py"
    code, output = start(example, arguments=("--epochs", "12"), nproc=2).end()
    assert code == 0, output
    accuracy = re.search(r"held-out accuracy: ([\d.]+)", output)
    difference = re.search(r"weight difference to one process: ([\d.e+-]+)", output)
    assert accuracy is not None and float(accuracy.group(1)) >= 0.95
    assert difference is not None and float(difference.group(1)) <= 1e-5


@pytest.mark.slow("60 jobs take a minute")
@pytest.mark.timeout(600)
def test_60_launches_side_by_side_race_for_no_port(tmp_path: Path) -> None:
    script = tmp_path / "listens.py"
    script.write_text(LISTENS)
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "2", str(script)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with ThreadPoolExecutor(12) as pool:
        ended = [*pool.map(lambda _: run_to_end(command, environ, 120.0), range(60))]
    assert [one.stderr for one in ended if one.returncode] == []
