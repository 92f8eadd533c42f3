"""One script under other people's launchers, none of which says where aiodist's processes shall meet."""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # `benchmarks` is not part of the wheel

from benchmarks import mpi
from tests.levels import COSTLY, MORE, few
from tests.processes import run_to_end

SLOW = pytest.mark.slow(MORE)

JOB = Path(__file__).parent / "launched_job.py"
PATIENCE = 150.0
TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "AIODIST_STORE", "AIODIST_SECRET")

pytestmark = pytest.mark.timeout(200)


def run(command: list[str], **environ: str) -> str:
    """What a command that ends well prints."""
    kept = {name: value for name, value in os.environ.items() if name not in TOLD}
    ended = run_to_end(command, {**kept, "OMP_NUM_THREADS": "1", **environ}, PATIENCE)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def check(out: str, size: int) -> None:
    """All ranks have met, twice."""
    total = sum(10**rank for rank in range(size))
    met = {f"{turn}: {rank} of {size}, {total} {turn * size}" for turn in range(2) for rank in range(size)}
    assert set(re.findall(r"<(\d: [^>]*)>", out)) == met, out


@pytest.mark.slow(COSTLY)
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (["--standalone"], ["aiodist"]),
        pytest.param(["--standalone"], ["aiodist", "torch"], marks=SLOW),
        pytest.param(
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"], ["torch", "aiodist"], marks=SLOW
        ),
        pytest.param(["--rdzv-backend", "static"], ["torch", "aiodist"], marks=SLOW),
    ],
    ids=["standalone", "standalone-before-torch", "c10d-after-torch", "static-after-torch"],
)
def test_torchrun(options: list[str], steps: list[str], port: int) -> None:
    if "static" in options:
        options = [*options, "--master-addr", "127.0.0.1", "--master-port", str(port)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", *options]
    out = run([*torchrun, str(JOB), *steps])
    check(out, 3)
    if "torch" in steps:
        assert set(re.findall(r"<torch: ([^>]*)>", out)) == {"0, 111", "1, 111", "2, 111"}


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("flavour", few(mpi.FLAVOURS, mpi.FLAVOURS[:1]), ids=lambda flavour: flavour.name)
def test_mpirun_without_mpi(flavour: mpi.Flavour) -> None:
    found = mpi.find(flavour, None, mpi.search_path(), mpi.own_prefix())
    if isinstance(found, str):
        pytest.skip(f"{flavour.name}: {found}")
    crowded = ["--oversubscribe"] if flavour.name == "openmpi" else []
    out = run([found.launcher, *crowded, "-n", "3", sys.executable, str(JOB)], **found.env)
    check(out, 3)


def test_tasks_of_slurm_meet_at_a_port_of_their_step() -> None:
    """As srun would start them on one node; there is no Slurm here."""
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3"}
    node = {"SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1"}
    with ThreadPoolExecutor(3) as tasks:
        started = [
            tasks.submit(
                run, [sys.executable, str(JOB)], SLURM_PROCID=rank, SLURM_LOCALID=rank, **step, **node
            )
            for rank in ("0", "1", "2")
        ]
        check("".join(task.result() for task in started), 3)
