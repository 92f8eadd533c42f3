"""torch's programs that use a group of ours wrongly: a clear error on every rank, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.levels import MORE, few
from tests.processes import run_to_end

JOB = Path(__file__).parent / "torch_misuse_job.py"
JOBS = [  # of parts that share one, since torch's import takes longest
    "arguments disagreements",
    "tensors dtypes works threads copies one_of_several averages aborted",
    "children interrupted destroyed",
]
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform"),
]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the job on two ranks."""
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "2", str(JOB), *words]
    return run_to_end(command, {**os.environ, "OMP_NUM_THREADS": "1"}, 100)


@pytest.mark.parametrize("parts", few(JOBS, JOBS[:1]))
def test_each_misuse_is_told_and_nothing_is_lost(parts: str) -> None:
    ended = run(*parts.split())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("held") == 2, ended.stdout + ended.stderr


@pytest.mark.slow(MORE)
@pytest.mark.parametrize("how", ["whole", "in_flight", "alone"])
def test_who_ends_without_destroying_its_group_ends_well(how: str) -> None:
    ended = run("leaves", how)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("held") == 2
    assert not ended.stderr


@pytest.mark.slow(MORE)
@pytest.mark.parametrize(
    ("how", "said"),
    [("in_vain", "RendezvousTimeout rank 1 of 2 did not come"), ("interrupted", "interrupted")],
)
def test_meeting_alone_ends(how: str, said: str, tmp_path: Path) -> None:
    command = [sys.executable, str(JOB), "meet", str(tmp_path / "store"), how]
    ended = run_to_end(command, {**os.environ, "OMP_NUM_THREADS": "1"}, 100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith(said), ended.stdout + ended.stderr
    assert len(ended.stdout.splitlines()) == 1
