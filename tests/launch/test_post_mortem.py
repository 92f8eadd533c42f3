"""Jobs that fail, with real processes: what the box, `explain` and `jobs` say is the same, and true."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aiodist.base.errors
from tests.levels import COSTLY, MORE
from tests.ports import free_port
from tests.processes import run_to_end

ROOT = Path(aiodist.__file__).parents[1]
PATIENCE = 200.0
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="recorders have files on Linux"),
    pytest.mark.timeout(250),
]

PROGRAM = """
import asyncio, ctypes, os, signal, sys, threading, time
import numpy as np
import aiodist as dist

how = sys.argv[1]

async def end(pg):
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "crashed":
        ctypes.string_at(0)  # crash
    if how == "exits":
        sys.exit(3)
    if how == "raises":
        raise ValueError("bad data")  # raise
    if how == "returns":
        return True
    return False

async def main():
    pg = await dist.init_process_group()
    x = np.full(100, pg.rank + 1.0, np.float32)
    await pg.all_reduce(x)
    await asyncio.sleep(0.5)  # what was done is written ten times a second
    if pg.rank == 2 and await end(pg):
        return
    await pg.all_reduce(x)  # wait
    await dist.destroy_process_group()

async def inside():
    async with await dist.init_process_group() as pg:
        x = np.full(100, pg.rank + 1.0, np.float32)
        await pg.all_reduce(x)
        await asyncio.sleep(0.5)
        if pg.rank == 2 and await end(pg):
            return
        await pg.all_reduce(x)  # inside

def in_a_thread():
    thread = threading.Thread(target=lambda: asyncio.run(inside()))
    thread.start()
    thread.join()

if "thread" in sys.argv and os.environ["RANK"] == "2":
    in_a_thread()
else:
    asyncio.run(inside() if "inside" in sys.argv else main())
"""


class Ended(NamedTuple):
    """A job that has ended: its code, what it said, and the folders of its program and of its dumps."""

    code: int
    said: str
    at: Path

    def ask(self, *words: str) -> str:
        """What a command of aiodist's prints, in the folder from which the job was started."""
        done = run_to_end([sys.executable, "-m", "aiodist", *words], environ(self.at), PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def folder(self) -> str:
        """The one that the launcher has named."""
        found = re.findall(r"what the ranks did last: aiodist explain (\S+)", self.said)
        assert found, self.said
        return str(found[-1])

    def explained(self) -> list[str]:
        """The lines of `explain`, for the folder that the launcher named."""
        return self.ask("explain", self.folder).splitlines()

    def job(self) -> dict[str, Any]:
        """What `jobs` says of it."""
        found = [
            one for one in json.loads(self.ask("jobs", "--json")) if one["script"] == f"{self.at.name}.py"
        ]
        assert found, "jobs does not show it"
        return dict(found[0])


def environ(at: Path, **more: str) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(at / "state"), **more}


def run(tmp_path: Path, *words: str, options: tuple[str, ...] = (), program: str = PROGRAM) -> Ended:
    """A job of three ranks, to its end. Its script has a name of its own, by which `jobs` tells it."""
    script = tmp_path / f"{tmp_path.name}.py"
    script.write_text(textwrap.dedent(program))
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=3", *options, str(script), *words]
    done = run_to_end(command, environ(tmp_path), PATIENCE)
    return Ended(done.returncode, done.stdout + done.stderr, tmp_path)


def line_of(comment: str) -> int:
    """The number of the line that ends so."""
    return next(n for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith(f"# {comment}"))


FAILED, LEFT = "rank 2 failed first", "rank 2 ended while others needed it"
WAYS = {
    "killed": (137, FAILED, "killed by SIGKILL", "find out who killed rank 2"),
    "crashed": (139, FAILED, "killed by SIGSEGV", "crashed in native code"),
    "exits": (3, FAILED, "exit code 3", "see why rank 2 ended by itself with exit code 3"),
    "raises": (1, FAILED, "exit code 1", "repair what rank 2 reported"),
    "returns": (1, LEFT, "exit code 0", "see where rank 2 ends"),
}


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("raises", "inside"),
        pytest.param("killed", "", marks=pytest.mark.slow(MORE)),
        pytest.param("killed", "inside", marks=pytest.mark.slow(MORE)),
        pytest.param("crashed", "", marks=pytest.mark.slow(MORE)),
        pytest.param("exits", "", marks=pytest.mark.slow(MORE)),
        pytest.param("exits", "inside", marks=pytest.mark.slow(MORE)),
        pytest.param("raises", "", marks=pytest.mark.slow(MORE)),
        pytest.param("returns", "", marks=pytest.mark.slow(MORE)),
        pytest.param("returns", "inside", marks=pytest.mark.slow(MORE)),
    ],
)
def test_all_say_the_same_of_a_failure(how: str, where: str, tmp_path: Path) -> None:
    code, who, cause, advice = WAYS[how]
    ended = run(tmp_path, how, where)
    assert ended.code == code
    assert f"╭─ aiodist run: {who} ─" in ended.said
    lines = ended.explained()
    assert f"3 ranks on 1 host: {who}: {cause} at " in lines[0].replace("; 1 of them wrote nothing", "")
    assert [line for line in lines if advice in line], lines
    assert not [line for line in lines if "no rank has died" in line or "stands still" in line], lines
    assert len(lines) <= 10
    if how == "raises":
        (told,) = (line for line in lines if line.startswith("rank 2 told: "))
        assert f"ValueError: bad data ({tmp_path.name}.py:{line_of('raise')} in end)" in told.replace(
            f"{tmp_path}/", ""
        )
    job = ended.job()
    assert job["code"] == code
    (verdict,) = job["verdicts"]
    assert verdict["title"].startswith(f"{who}: {cause} at ") and verdict["ranks"] == [2]
    named = ended.ask("explain", f"{tmp_path.name}.py").splitlines()
    assert named[0] == lines[0]


@pytest.mark.slow("more of the same: an exception in a thread that is not the main one")
def test_an_exception_in_another_thread_is_told(tmp_path: Path) -> None:
    ended = run(tmp_path, "raises", "thread")
    assert ended.code == 1, ended.said  # of the ranks that noticed it: the process itself ends by 0
    assert f"╭─ aiodist run: {LEFT} ─" in ended.said and "│ ValueError: bad data" in ended.said
    lines = ended.explained()
    assert f": {LEFT}: exit code 0 at " in lines[0]
    assert any(line.startswith("rank 2 told: ValueError: bad data (") for line in lines), lines


@pytest.mark.slow(COSTLY)
def test_the_folder_of_log_dir_is_explained_wherever_the_program_went(tmp_path: Path) -> None:
    """It is relative, and the ranks work somewhere else."""
    (tmp_path / "away").mkdir()
    program = f"import os\nos.chdir({str(tmp_path / 'away')!r})\n{PROGRAM}"
    script = tmp_path / "moves.py"
    script.write_text(program)
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=3", "--log-dir=logs", str(script)]
    done = subprocess.run(
        [*command, "raises", "inside"],
        cwd=tmp_path,
        env=environ(tmp_path),
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert list((tmp_path / "away").iterdir()) == [] and not (tmp_path / "state").exists()
    told = Ended(1, "", tmp_path).ask("explain", str(tmp_path / "logs")).splitlines()
    assert "moves.py, 3 ranks on 1 host: rank 2 failed first: exit code 1 at" in told[0]
    files = sorted(file.name for file in (tmp_path / "logs").rglob("*.json"))
    assert files == ["outcome.json", "rank0.json", "rank1.json", "rank2.json"]


NO_RANK = """
import sys
raise ValueError("before any rank")
"""


@pytest.mark.slow("more of the same")
def test_a_program_that_never_began_is_explained_from_its_log_dir(tmp_path: Path) -> None:
    ended = run(tmp_path, options=(f"--log-dir={tmp_path / 'logs'}",), program=NO_RANK)
    assert ended.code == 1 and "aiodist explain" not in ended.said
    lines = ended.ask("explain", str(tmp_path / "logs")).splitlines()
    assert "failed first: exit code 1 at" in lines[0]
    assert any("ValueError: before any rank" in line for line in lines)


MENDED = """
import asyncio, os, signal
import numpy as np
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        await pg.all_reduce(np.full(3, pg.rank + 1.0))
        await asyncio.sleep(0.5)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and pg.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        await pg.all_reduce(np.full(3, pg.rank + 1.0))
        print("DONE", flush=True)

asyncio.run(main())
"""


@pytest.mark.slow(COSTLY)
def test_a_job_that_was_started_again_and_ended_well_has_not_failed(tmp_path: Path) -> None:
    ended = run(tmp_path, options=("--max-restarts=1",), program=MENDED)
    assert ended.code == 0, ended.said
    lines = ended.explained()  # of the first attempt
    assert "the job ended well after 1 restart" in lines[0]
    assert any("rank 2 failed (killed by SIGKILL); restart 1 of 1" in line for line in lines), lines
    assert not [
        one for one in json.loads(ended.ask("jobs", "--json")) if one["script"] == f"{tmp_path.name}.py"
    ]


HEALED = """
import asyncio, os, signal, sys
import numpy as np
import aiodist as dist

async def main():
    pg = await dist.join(timeout=100)
    for step in range(3):
        try:
            await pg.all_reduce(np.full(3, pg.rank + 1.0))
            if pg.epoch == 0 and pg.rank == 2:
                await asyncio.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
            await pg.barrier()
            if pg.epoch:
                break
        except dist.GroupBroken:
            pg = await pg.rebuild(min_size=3, admit=True, timeout=100)
    if pg.rank == 0:
        await asyncio.sleep(0.5)
        jobs = await asyncio.create_subprocess_exec(sys.executable, "-m", "aiodist", "jobs")
        await jobs.wait()
    await pg.barrier()
    await pg.aclose()

asyncio.run(main())
"""


def test_a_job_that_healed_is_not_in_trouble(tmp_path: Path) -> None:
    ended = run(tmp_path, options=("--max-restarts=3", "--line-prefix-template="), program=HEALED)
    assert ended.code == 0, ended.said
    (line,) = (line for line in ended.said.splitlines() if f" {tmp_path.name}.py " in line)
    assert line.split()[-1] == "none", line


@pytest.mark.slow(COSTLY)
def test_ctrl_c_is_told_as_such(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text(
        PROGRAM.replace("await asyncio.sleep(0.5)", 'print("up", flush=True); await asyncio.sleep(500)')
    )
    command = [
        sys.executable,
        "-m",
        "aiodist",
        "run",
        "--nproc-per-node=3",
        "--log-dir=logs",
        str(script),
        "no",
    ]
    job = subprocess.Popen(
        [*command, "inside"],
        cwd=tmp_path,
        env=environ(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert job.stdout is not None
    for _ in range(3):
        assert b"up" in job.stdout.readline()
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=PATIENCE)
    assert job.returncode == 130 and b"stopped by SIGINT: all 3 worker(s) have ended" in said
    lines = Ended(130, "", tmp_path).ask("explain", str(tmp_path / "logs")).splitlines()
    assert "stopped by SIGINT: all 3 worker(s) have ended" in lines[0]
    assert not [line for line in lines if "died" in line], lines


PAIR = """
import asyncio, os, signal, sys, time
import numpy as np
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        await pg.all_reduce(np.full(3, pg.rank + 1.0))
        print("up", flush=True)
        while not os.path.exists(sys.argv[1]):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        if pg.rank == 2 or sys.argv[2] == "all":
            os.kill(os.getpid(), signal.SIGKILL)
        await pg.all_reduce(np.full(3, pg.rank + 1.0))

asyncio.run(main())
"""


@pytest.mark.slow(COSTLY)
def test_jobs_of_one_name_at_the_same_time_are_not_mixed(tmp_path: Path) -> None:
    """Of one all ranks die, of the other one rank: each post-mortem has its own, and no other's."""
    script = tmp_path / "same.py"
    script.write_text(PAIR)
    jobs = []
    for number, (how, ranks) in enumerate([("all", 3), ("one", 4)]):
        command = [sys.executable, "-m", "aiodist", "run", "--rdzv-id=same", f"--nproc-per-node={ranks}"]
        words = [str(script), str(tmp_path / "go"), how]
        at = tmp_path / f"state{number}"
        job = subprocess.Popen(
            [*command, *words],
            env=environ(tmp_path, XDG_STATE_HOME=str(at)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        jobs.append((job, at, ranks))
    for job, _, ranks in jobs:
        assert job.stdout is not None
        for _ in range(ranks):
            assert "up" in job.stdout.readline()
    (tmp_path / "go").touch()
    for job, at, ranks in jobs:
        _, said = job.communicate(timeout=PATIENCE)
        assert job.returncode == 137, said
        files = sorted(at.rglob("rank*.json"))
        assert [file.name for file in files] == [f"rank{rank}.json" for rank in range(ranks)], said
        assert len({file.parent for file in files}) == 1
        assert {json.loads(file.read_text())["recording"]["size"] for file in files} == {ranks}


@pytest.mark.slow("two jobs, one after the other")
def test_jobs_of_one_name_one_after_another_are_not_mixed(tmp_path: Path) -> None:
    """In one folder of logs, within a second of each other: the second one is smaller."""
    (tmp_path / "go").touch()
    script = tmp_path / "same.py"
    script.write_text(PAIR)
    logs = tmp_path / "logs"
    for ranks in (4, 3):
        command = [sys.executable, "-m", "aiodist", "run", "--rdzv-id=same", f"--nproc-per-node={ranks}"]
        words = [f"--log-dir={logs}", str(script), str(tmp_path / "go"), "all"]
        assert run_to_end([*command, *words], environ(tmp_path), PATIENCE).returncode == 137
    lines = Ended(137, "", tmp_path).ask("explain", str(logs)).splitlines()
    assert lines[0].startswith("same.py, 3 ranks on 1 host: ")
    assert lines[-1].startswith("(the newest of 2 in it")
    assert len(list(logs.rglob("rank3.json"))) == 1


NODES = """
import asyncio, os, signal
import numpy as np
import aiodist as dist

async def main():
    async with await dist.init_process_group() as pg:
        await pg.all_reduce(np.full(3, pg.rank + 1.0))
        await asyncio.sleep(0.5)
        if pg.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        await pg.all_reduce(np.full(3, pg.rank + 1.0))

asyncio.run(main())
"""


@pytest.mark.slow("more of the same: two agents")
def test_the_agents_of_two_nodes_say_the_same(tmp_path: Path) -> None:
    """Each has a folder of its own in one that both see; together they have all ranks."""
    script, logs = tmp_path / "nodes.py", tmp_path / "logs"
    script.write_text(NODES)
    port = free_port()
    agents = []
    for node in (0, 1):
        where = ["--nnodes=2", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"]
        command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=2", *where, f"--log-dir={logs}"]
        agents.append(
            subprocess.Popen(
                [*command, str(script)],
                env=environ(tmp_path, AIODIST_SECRET="one" * 16),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for agent in agents:
        _, said = agent.communicate(timeout=PATIENCE)
        assert agent.returncode == 137 and "╭─ aiodist run: rank 3 failed first ─" in said, said
    lines = Ended(137, "", tmp_path).ask("explain", str(logs)).splitlines()
    assert lines[0].startswith("nodes.py, 4 ranks on 1 host: rank 3 failed first: killed by SIGKILL at "), (
        lines
    )
    titles = {json.loads(file.read_text())["title"] for file in logs.rglob("outcome.json")}
    assert len(titles) == 1
