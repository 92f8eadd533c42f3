"""The experiment with silent connections runs, and the job gives right results. Nothing is timed here."""

from __future__ import annotations

import sys

import pytest

from tests.levels import COSTLY
from tests.transport.silent_load import main


@pytest.mark.slow(COSTLY)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks' ports in /proc")
def test_a_job_among_silent_connections() -> None:
    found = main(300, rounds=2, seconds=0.2)
    assert found["held"] > 0
    assert found["held"] + found["returned"] >= 300  # on a slow machine some are sent away meanwhile
    for turn in ("without", "with"):
        assert found[turn]["calls"] >= 400
        assert found[turn]["p99_us"] >= found[turn]["p50_us"] > 0
