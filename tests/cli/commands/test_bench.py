"""`aiodist bench`: its command line, and one small run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiodist.base.errors import UsageError
from aiodist.cli.bench.cases import SWEPT
from aiodist.cli.bench.measures import SIZES
from aiodist.cli.commands.bench import make_config
from tests.cli.terminal import terminal
from tests.levels import COSTLY


def options(*argv: str, live: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(make_config(argv, live=live).command[-1])
    return found


def test_by_default_everything_is_measured_on_two_ranks() -> None:
    assert make_config([], live="").nproc == 2
    found = options()
    assert tuple(found["kinds"]) == SWEPT
    assert tuple(found["sizes"]) == SIZES
    assert found["json"] is None


def test_sizes_ranks_and_file(tmp_path: Path) -> None:
    assert make_config(["--nproc-per-node", "4"], live="").nproc == 4
    assert options("--sizes", "1MiB", "8", "8")["sizes"] == [8, 1 << 20]
    assert options("--only", "barrier")["kinds"] == ["barrier"]
    assert options("--json", str(tmp_path / "x"), live="stderr")["live"] == "stderr"
    assert max(options("--quick")["sizes"]) == 16 << 20


@pytest.mark.parametrize(
    "argv",
    [
        ["--sizes", "big"],
        ["--only", "everything"],
        ["--json", "/nowhere/at/all"],
        ["--speed"],
        ["--json", "/"],
        ["--json", f"/{'x' * 300}/y"],
    ],
)
def test_a_command_line_without_meaning_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        make_config(argv, live="")


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write to any
    with pytest.raises(UsageError, match=r"--json .*figures cannot be written\. Name a file in a folder of"):
        make_config(["--json", str(tmp_path / "figures")], live="")


@pytest.mark.slow(COSTLY)
def test_a_small_run(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    sizes = ["--quick", "--sizes", "8", "64KiB", "--only", "all_reduce", "barrier"]
    command = [sys.executable, "-m", "aiodist", "bench", *sizes, "--json", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""  # progress is for terminals
    assert "| all_reduce | 64 KiB |" in run.stdout
    assert "in flight" in run.stdout
    assert "ticker" in run.stdout
    figures = json.loads(path.read_text())
    assert figures["ranks"] == 2
    assert [(line["what"], line["nbytes"]) for line in figures["sweep"]] == [
        ("all_reduce", 8),
        ("all_reduce", 64 << 10),
        ("barrier", 0),
    ]
    assert figures["in_flight_per_second"] > 0
    assert figures["doubt"] in run.stdout  # '' on a quiet machine
    assert "\x1b" not in run.stdout


@pytest.mark.slow(COSTLY)
def test_in_a_terminal_a_bar_fills_and_the_head_is_bold() -> None:
    command = [sys.executable, "-m", "aiodist", "bench", "--quick", "--sizes", "8", "--only", "barrier"]
    with terminal(command) as shown:
        drawn = shown.rest()
    assert "\x1b[1m| operation" in drawn
    assert "   0 % " in drawn and "barrier" in drawn
    assert "━━━━" in drawn
