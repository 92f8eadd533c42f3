"""Simulations of small programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.scripts import Simulate


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulate:
    """Simulates a body of code."""
    return Simulate(tmp_path, capsys)
