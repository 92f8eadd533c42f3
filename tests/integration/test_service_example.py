"""examples/service.py under the load test: workers are killed while it serves, and no request fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.processes import run_to_end

ROOT = Path(__file__).parents[2]

pytest.importorskip("aiohttp")


@pytest.mark.slow("a service of four processes, and another one beside it")
def test_workers_die_and_come_back_while_it_serves() -> None:
    command = [sys.executable, "-m", "benchmarks.service_load", "--turns", "1", "--seconds", "0.2"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = run_to_end([*command, "--kills", "2", "--port", str(free_port())], environ, 120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 workers killed" in ended.stdout
    assert ", 0 failed," in ended.stdout


def test_the_example_is_short() -> None:
    text = (ROOT / "examples" / "service.py").read_text()
    own = [line for line in text[text.index("\nimport") :].splitlines() if line.strip()]
    assert len(own) <= 60
