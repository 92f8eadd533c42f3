"""Two states beside each other: the interval, and a run of one line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiodist.base.errors
from benchmarks.harness.command import ROOT as HERE
from benchmarks.pairs import interval, library, main, peers
from tests.processes import run_to_end

ROOT = Path(aiodist.__file__).parents[1]


def test_the_interval_of_twenty() -> None:
    assert interval(range(20)) == (5, 14)  # P(fewer than 6 of 20 fair coins) = 0.0207
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60))
def test_an_interval_holds_the_median_and_is_of_the_values(ratios: list[float]) -> None:
    low, high = interval(ratios)
    assert low in ratios and high in ratios
    assert low <= sorted(ratios)[len(ratios) // 2] <= high or len(ratios) % 2 == 0


def test_each_state_is_measured_by_its_own_processes(tmp_path: Path) -> None:
    (tmp_path / "aiodist").symlink_to(ROOT / "aiodist")
    with peers(tmp_path) as (old, new):
        assert library(new) == HERE / "aiodist"
        assert library(old) != library(new)
        assert library(old).resolve() == (ROOT / "aiodist").resolve()


OLD = """
def run(main): ...
async def init_process_group(**options): ...
class ProcessGroup: ...
"""


def test_ranks_need_only_the_public_names_of_another_state(tmp_path: Path) -> None:
    (tmp_path / "aiodist").mkdir()
    (tmp_path / "aiodist" / "__init__.py").write_text(OLD)
    environ = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{tmp_path}:{HERE}"}
    ranks = (
        "import aiodist, benchmarks.ranks.__main__, benchmarks.ranks.with_aiodist; print(aiodist.__file__)"
    )
    ended = run_to_end([sys.executable, "-c", ranks], environ, 60)
    assert ended.stdout.strip() == str(tmp_path / "aiodist" / "__init__.py"), ended.stderr


@pytest.mark.slow("two runs of a job, one after the other")
def test_a_state_beside_itself(capsys: pytest.CaptureFixture[str]) -> None:
    main([str(ROOT), "--pairs", "1", "--only", "barrier"])
    assert "| barrier | " in capsys.readouterr().out


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
