"""A job in which one rank has the compiled engine and another has none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.helpers import needs_the_engine
from tests.levels import few
from tests.processes import run_to_end

JOB = Path(__file__).with_name("engines_job.py")


@pytest.mark.parametrize("transport", few(["auto", "shm"], ["auto"]))
def test_one_rank_without_the_engine(transport: str) -> None:
    """Its data goes over sockets, with one line in the log; where only memory is allowed it is refused."""
    needs_the_engine()
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "2", str(JOB)]
    ended = run_to_end(command, os.environ | {"AIODIST_TRANSPORT": transport}, 120)
    if transport == "auto":
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("alike") == 2
        assert (ended.stdout + ended.stderr).count("data goes over sockets between them") == 1
    else:
        assert ended.returncode != 0
        assert "AIODIST_TRANSPORT=shm, but rank " in ended.stderr and "no compiled engine" in ended.stderr
