"""The fault tests of docs/failures-table.md, each once or twice: nothing may be wrong. No timings."""

from __future__ import annotations

import asyncio
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:  # `benchmarks` is not part of the wheel: find it beside the tests
    sys.path.append(ROOT)

from benchmarks.deaths.figures import Figures, milliseconds, percentile  # noqa: E402
from benchmarks.deaths.kills import judge  # noqa: E402
from benchmarks.deaths.rows import ROWS  # noqa: E402
from benchmarks.deaths.scale import Scale  # noqa: E402
from benchmarks.deaths.table import COMMAND, table  # noqa: E402
from benchmarks.harness.command import END, begin, put_into  # noqa: E402
from tests.levels import COSTLY, few  # noqa: E402
from tests.support.faults import Round, Said  # noqa: E402

HERE = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 20, 21)  # the others are tests of their own


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", few(HERE, (6,), "a row of the table of faults"))
def test_row(number: int) -> None:
    run = ROWS[number].run
    assert run is not None
    try:
        found = asyncio.run(run(Scale(quick=True, quiet=True)))
    except unittest.SkipTest as reason:
        pytest.skip(str(reason))
    for figures in found:
        assert not figures.problems, "\n".join(figures.problems)
        assert (figures.hangs, figures.wrong) == (0, 0), figures
        assert figures.row == number
    assert sum(figures.repeats for figures in found) > 0


def said(**value: object) -> Said:
    """What a survivor reports, nothing wrong with it but what is given."""
    times = {"at": 7_000_000, "issued": 1_000_000}
    error = times | {"type": "PeerLost", "ranks": [1], "op": "all_reduce", "seq": 4}
    usual = {"right": 3, "wrong": 0, "failed": [error, error | {"seq": 5}], "later": error}
    return Said(0, "ends", 0, {"value": usual | value})


def test_the_judge_of_kills_sees_what_is_wrong() -> None:
    def judged(outcome: Said | None) -> Figures:
        figures = Figures(1, "", "2")
        for rank, seen in figures.take({0: outcome}, cast("Round", SimpleNamespace(report=str))).items():
            judge(figures, rank, seen, 1, 5_000_000)
        return figures

    assert judged(said()).good
    assert judged(said()).samples == [2.0]
    assert judged(None).hangs == 1
    assert judged(said(wrong=1)).wrong == 1
    assert not judged(said(right=2)).good  # another number
    assert not judged(said(failed=[])).good
    assert not judged(said(later=None)).good
    assert not judged(Said(0, "died", 0)).good
    wrong_rank = {"at": 0, "issued": 0, "type": "PeerLost", "ranks": [2], "op": "all_reduce", "seq": 4}
    assert not judged(said(failed=[wrong_rank])).good


def test_percentiles_are_samples() -> None:
    samples = [float(number) for number in range(1, 101)]
    assert [percentile(samples, share) for share in (50, 99, 100)] == [50, 99, 100]
    assert percentile([4.0], 99) == 4.0
    assert [milliseconds(value) for value in (3.14159, 99.95, 1234.5)] == ["3.1", "100.0", "1234"]


def test_table_has_every_row_and_says_what_was_missed(tmp_path: Path) -> None:
    slow = Figures(1, "TCP", "2", repeats=1000, samples=[30.0], bar=20.0, checked=5)
    failed = Figures(4, "TCP", "3", repeats=1, problems=["x"])
    results = {
        "facts": {
            "cpu": "CPU", "cores": 2, "kernel": "Linux", "python": "3.11", "packages": {}, "commit": "abc",
            "date": "2026-01-01T00:00", "load_before": 0.5,
        },
        "rows": {str(f.row): {"whole": True, "figures": [f.as_json()]} for f in (slow, failed)},
    }  # fmt: skip
    text = table(results)
    assert [f"| {number} | " in text for number in range(1, 22)] == [True] * 21
    assert "| 1,000 | 30.0 | **30.0** (> 20) | 30.0 | 0 | 0 of 5 |" in text
    assert "**1 not as expected**" in text
    assert "it needs a GPU" in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin(COMMAND)}\nold\n{END}\nafter\n")
    put_into(page, text, COMMAND)
    assert page.read_text() == f"before\n{begin(COMMAND)}\n\n{text}\n\n{END}\nafter\n"
