"""examples/service.py under the load test: workers are killed while it serves, and no request fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.processes import run_to_end

ROOT = Path(__file__).parents[2]

pytest.importorskip("aiohttp")


@pytest.mark.slow("a service of four processes, and another one beside it")
def test_workers_die_and_come_back_while_it_serves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "speed", "--quick", "--only", "application"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = run_to_end([*command, "--out", str(tmp_path)], environ, 120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    page = (tmp_path / "results.md").read_text()
    assert "2 workers killed" in page
    assert ", 0 failed," in page


def test_the_example_is_short() -> None:
    text = (ROOT / "examples" / "service.py").read_text()
    own = [line for line in text[text.index("\nimport") :].splitlines() if line.strip()]
    assert len(own) <= 60
