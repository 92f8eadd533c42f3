"""The GPU example where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.levels import COSTLY, few


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("library", few(["torch", "cupy"], ["cupy"]))
def test_missing_gpu_is_said_in_one_line(library: str) -> None:
    example = Path(__file__).parents[2] / "examples" / "train_gpu.py"
    done = subprocess.run(
        [sys.executable, str(example), "--library", library],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("BackendUnavailable: ")
    assert (done.returncode, done.stdout) == (1, "")
