"""Separate jobs of one, where one job was meant: refused under real mpiruns, and with srun's variables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # `benchmarks` is not part of the wheel

from benchmarks import mpi
from tests.levels import COSTLY, MORE, few
from tests.processes import run_to_end

JOB = """
import sys
import numpy as np
import aiodist as dist

async def main():
    async with await dist.init_process_group(world_size=int((sys.argv + [-1])[1]), timeout=60) as pg:
        total = await pg.all_reduce(np.array([10 ** pg.rank]))
        print(f"<{pg.rank} of {pg.size}: {total[0]}>", flush=True)

dist.run(main())
"""
TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "AIODIST_STORE")
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}

pytestmark = pytest.mark.timeout(200)
FLAVOURS = {flavour.name: flavour for flavour in mpi.FLAVOURS}
COUNTS = {"openmpi": "OMPI_COMM_WORLD_SIZE", "mpich": "PMI_SIZE"}


@cache
def installed(flavour: str) -> mpi.Mpi | str:
    return mpi.find(FLAVOURS[flavour], None, mpi.search_path(), mpi.own_prefix())


@pytest.fixture(params=few(FLAVOURS, ["mpich"]))
def flavour(request: pytest.FixtureRequest) -> str:
    found = installed(request.param)
    if isinstance(found, str):
        pytest.skip(f"{request.param}: {found}")
    return str(request.param)


@pytest.fixture
def job(tmp_path: Path) -> str:
    """A script whose processes say of how many they are."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    return str(script)


def run(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in TOLD}
    root = str(Path(__file__).parents[2])
    return run_to_end(command, {**kept, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **environ}, 150)


def mpirun(flavour: str, size: int, command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    found = installed(flavour)
    assert not isinstance(found, str)
    crowded = ["--oversubscribe"] if flavour == "openmpi" else []
    return run([found.launcher, *crowded, "-n", str(size), *command], **found.env, **environ)


def agent(job: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "aiodist", "run", *options, job]


def met(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """What the processes of a command that ends well say."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return sorted(re.findall(r"<([^>]*)>", ended.stdout))


@pytest.mark.slow(COSTLY)
def test_separate_agents_are_refused(flavour: str, job: str) -> None:
    ended = mpirun(flavour, 2, agent(job))
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert "<" not in ended.stdout
    assert "error: " in ended.stderr
    assert "started 2 agents, 2 of them on this node, and one agent starts all workers" in ended.stderr
    assert "AIODIST_ALONE=1 if each is meant to be a job of its own" in ended.stderr
    ended = mpirun(flavour, 2, agent(job, "--nnodes", "1"))
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert f"error: {COUNTS[flavour]}=2: this agent is one of several that were started toge" in ended.stderr


@pytest.mark.slow(MORE)
def test_separate_agents_may_be_meant(flavour: str, job: str) -> None:
    ended = mpirun(flavour, 2, agent(job, "--nproc-per-node", "2"), AIODIST_ALONE="1")
    assert met(ended) == ["0 of 2: 11"] * 2 + ["1 of 2: 11"] * 2
    assert "job of its own" not in ended.stderr


@pytest.mark.slow(COSTLY)
def test_agents_of_one_job_meet(flavour: str, job: str, port: int) -> None:
    meet = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    ended = mpirun(flavour, 2, agent(job, *meet), AIODIST_SECRET="of the nodes")
    assert met(ended) == ["0 of 2: 11", "1 of 2: 11"]


@pytest.mark.slow(MORE)
def test_one_process_of_mpirun_is_no_company(flavour: str, job: str) -> None:
    """Also where mpirun's helper was started by srun, and its variables came along."""
    ended = mpirun(flavour, 1, agent(job), **(STEP if flavour == "mpich" else {}))
    assert met(ended) == ["0 of 1: 1"]
    assert "job of its own" not in ended.stderr


@pytest.mark.slow(COSTLY)
def test_plain_script_is_one_job(flavour: str, job: str) -> None:
    assert met(mpirun(flavour, 2, [sys.executable, job])) == ["0 of 2: 11", "1 of 2: 11"]


@pytest.mark.slow(MORE)
def test_plain_script_may_be_separate_jobs(flavour: str, job: str) -> None:
    """By a variable, and by the script."""
    ended = mpirun(flavour, 2, [sys.executable, job], AIODIST_ALONE="1")
    assert met(ended) == ["0 of 1: 1"] * 2
    assert met(mpirun(flavour, 2, [sys.executable, job, "1"])) == ["0 of 1: 1"] * 2


@pytest.mark.slow(COSTLY)
def test_agent_of_a_step_is_refused(job: str) -> None:
    ended = run(agent(job), **STEP)
    assert ended.returncode == 2
    assert ended.stderr.startswith("aiodist run: error: Slurm started 2 agents, several of them on this node")
    ended = run(agent(job, "--nnodes", "1"), **STEP)
    assert ended.returncode == 2
    assert ended.stderr.startswith("aiodist run: error: SLURM_STEP_NUM_TASKS=2: this agent is one of several")
    assert met(run(agent(job), **STEP, AIODIST_ALONE="1")) == ["0 of 1: 1"]


@pytest.mark.slow(MORE)
def test_agent_in_a_batch_script(job: str) -> None:
    """A warning, but not where it starts as many workers as tasks were asked for."""
    ended = run(agent(job), **BATCH)
    assert met(ended) == ["0 of 1: 1"]
    [line] = [line for line in ended.stderr.splitlines() if "SLURM_NTASKS" in line]
    assert line.startswith("aiodist run: SLURM_NTASKS=2, but this is a job of one node, and of its own. ")
    ended = run(agent(job, "--nproc-per-node", "2"), **BATCH)
    assert met(ended) == ["0 of 2: 11", "1 of 2: 11"]
    assert "SLURM_NTASKS" not in ended.stderr


def test_worker_of_an_agent_that_was_started_in_a_step(job: str, port: int) -> None:
    """The step's variables are about the agents, also to what a worker starts."""
    meet = ["--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    assert met(run(agent(job, *meet), **STEP, AIODIST_SECRET="of the nodes")) == ["0 of 1: 1"]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, "HOROVOD_SIZE=2"),
        pytest.param({"PET_NNODES": "2", "PET_NODE_RANK": "1"}, "PET_NNODES=2", marks=pytest.mark.slow(MORE)),
    ],
)
def test_plain_script_that_nobody_tells_its_rank_is_refused(
    job: str, environ: dict[str, str], said: str
) -> None:
    ended = run([sys.executable, job], **environ)
    assert ended.returncode == 1
    assert f"UsageError: {said}, but no setting says where this process meets the others" in ended.stderr
    assert met(run([sys.executable, job, "1"], **environ)) == ["0 of 1: 1"]
    assert met(run([sys.executable, job], **environ, AIODIST_ALONE="1")) == ["0 of 1: 1"]
    shown = run([sys.executable, "-m", "aiodist", "env"], **environ)
    assert f"\nothers            {said}: refused" in shown.stdout


@pytest.mark.slow(MORE)
def test_children_of_a_rank_are_no_jobs_of_their_own(job: str, tmp_path: Path) -> None:
    """Processes of multiprocessing that start a group by themselves, among workers and under an agent."""
    script = tmp_path / "pool.py"
    script.write_text(
        """
import multiprocessing as mp
import runpy, sys
def work(job):
    sys.argv = [job, "1"]
    runpy.run_path(job, run_name="__main__")
if __name__ == "__main__":
    child = mp.get_context("spawn").Process(target=work, args=(sys.argv[1],))
    child.start(); child.join(); sys.exit(child.exitcode)
"""
    )
    told = [*agent(str(script), "--nproc-per-node", "2"), job]
    assert met(run(told)) == ["0 of 1: 1"] * 2
