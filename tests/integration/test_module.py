"""`dist.DistributedDataParallel`: the bits of torch's wrapper over gloo; training that survives a death."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.levels import MORE
from tests.processes import run_to_end

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform"),
]


def run(size: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", str(size), *arguments]
    return run_to_end(command, {**os.environ, "OMP_NUM_THREADS": "1"}, 250)


@pytest.mark.parametrize(
    "size", [2, pytest.param(3, marks=pytest.mark.slow(MORE)), pytest.param(4, marks=pytest.mark.slow(MORE))]
)
def test_steps_give_what_torchs_wrapper_gives(size: int) -> None:
    ended = run(size, str(HERE / "module_job.py"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("all the same") == size, ended.stdout


@pytest.mark.slow("a death, and a worker that starts anew")
def test_training_goes_on_where_a_rank_dies_in_the_backward_pass(tmp_path: Path) -> None:
    job = [str(HERE / "module_elastic_job.py"), str(tmp_path / "killed")]
    ended = run(3, "--max-restarts", "2", *job)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("trained by 3, 2 changes") == 2, ended.stdout
    assert ended.stdout.count("trained by 3, 0 changes") == 1, ended.stdout


@pytest.mark.slow("a death")
def test_a_sync_that_was_cancelled_says_later_that_a_rank_died() -> None:
    ended = run(2, "--on-failure", "continue", str(HERE / "module_losses_job.py"), "cancelled", "")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("went on 1") == 1, ended.stdout + ended.stderr


@pytest.mark.slow("two deaths, and a worker that starts anew")
def test_no_newcomer_trains_from_nothing(tmp_path: Path) -> None:
    job = [str(HERE / "module_losses_job.py"), "orphaned", str(tmp_path / "shared")]
    ended = run(2, "--max-restarts", "1", *job)
    assert ended.returncode != 0
    assert "QuorumLost: all members that had the values died" in ended.stdout + ended.stderr
    assert "trained from nothing" not in ended.stdout
