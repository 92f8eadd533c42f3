"""Cores that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiodist.base.environment import cores as module
from aiodist.base.environment.cores import affinity, cores, quota


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None), ("1 0 0", None), ("50000 0x", None)],
)
def test_quota_is_what_the_file_says(text: str, cpus: float | None, tmp_path: Path) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(text)
    assert quota(path) == cpus


def test_no_file_is_no_quota(tmp_path: Path) -> None:
    assert quota(tmp_path / "cpu.max") is None


@pytest.mark.parametrize(
    ("cpus", "limit", "count"), [(4, None, 4), (4, 1.5, 1.5), (4, 8.0, 4), (1, 0.5, 0.5)]
)
def test_cores_are_the_fewer_of_both(
    monkeypatch: pytest.MonkeyPatch, cpus: int, limit: float | None, count: float
) -> None:
    monkeypatch.setattr(module, "affinity", lambda: cpus)
    monkeypatch.setattr(module, "quota", lambda: limit)
    assert cores() == count


def test_cores_of_this_process() -> None:
    assert 0 < cores() <= affinity() <= (os.cpu_count() or 1)
