"""The examples of training with less traffic: each way and codec learns, in at most 60 lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.levels import COSTLY, few

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = (
    "train_diloco.py --way streaming --codec int4",
    "train_diloco.py",
    "train_diloco.py --way local-sgd --codec int8",
    "train_int8.py",
    "train_int8.py --codec int4",
)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("words", few(RUNS, (RUNS[0], RUNS[3]), "an example of training"))
def test_it_learns(words: str) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    script, *more = words.split()
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "2", str(EXAMPLES / script), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    right = [
        float(found) for found in re.findall(r"step \d+: (\S+) of held-out digits, 2 ranks", done.stdout)
    ]
    assert len(right) == 3, done.stdout
    assert right[-1] > 0.9


@pytest.mark.parametrize("script", ["train_diloco.py", "train_int8.py"])
def test_it_is_short(script: str) -> None:
    assert len((EXAMPLES / script).read_text().splitlines()) <= 60
