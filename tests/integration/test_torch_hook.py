"""torch's DDP with the quantised hook: GradientSync's bits, error feedback, values that are not finite."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.levels import MORE, few

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform"),
]
JOB = Path(__file__).with_name("torch_hook_job.py")
CASES = [
    ("aiodist", "int8", 2),
    ("aiodist", "int4_in_buckets", 3),
    ("aiodist", "the_mean_over_steps_is_exact", 2),
    ("aiodist", "not_finite", 2),
    ("aiodist", "a_step_that_raises_does_not_count", 2),
    ("aiodist", "diloco", 2),
    ("aiodist", "refused", 2),
    ("gloo", "int4_in_buckets", 2),
]


@pytest.mark.parametrize(("backend", "check", "size"), few(CASES, [CASES[1], CASES[3]], MORE))
def test_quantised_gradients_of_ddp(backend: str, check: str, size: int, tmp_path: Path) -> None:
    as_gloo = ["--torch"] if backend == "gloo" else []
    command = ["-m", "aiodist", "run", *as_gloo, f"--nproc-per-node={size}", str(JOB), backend, check]
    ended = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert ended.stdout.count("same") == size
