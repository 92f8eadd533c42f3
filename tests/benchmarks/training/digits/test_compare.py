"""What is said of trainings with deaths beside those without; the table, the figure, and the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.harness.command import END, begin
from benchmarks.training.digits import command
from benchmarks.training.digits.algorithms import ALGORITHMS
from benchmarks.training.digits.compare import Comparison, table
from benchmarks.training.digits.figure import draw
from benchmarks.training.digits.plan import Deaths
from benchmarks.training.digits.training import Outcome

LOSSES = (0.10, 0.12, 0.14)  # mean 0.12, standard deviation 0.02


def outcome(seed: int, loss: float, kills: int = 0, weights: str = "") -> Outcome:
    return Outcome(seed, kills, 4, loss / 2, loss, 0.9 + loss / 10, weights or f"bits {seed}", 3.5)


def compared(name: str, *deaths: Outcome) -> Comparison:
    return Comparison(name, [outcome(seed, loss) for seed, loss in enumerate(LOSSES)], deaths)


@pytest.mark.parametrize(
    ("loss", "apart", "kept"), [(0.155, 1.75, True), (0.165, 2.25, False), (0.075, -2.25, False)]
)
def test_a_mean_within_two_deviations_is_kept(loss: float, apart: float, kept: bool) -> None:
    one = compared("diloco", outcome(0, loss - 0.03, 6), outcome(1, loss + 0.03, 5))
    assert one.apart == pytest.approx(apart)
    assert (one.kept, one.kills, one.equal) == (kept, 11, 2)


def test_where_equal_bits_are_promised_nothing_else_counts() -> None:
    same = compared("ddp", outcome(0, 0.10, 12), outcome(2, 0.14, 12))
    assert same.kept and same.equal == 2
    other = compared("ddp", outcome(0, 0.10, 12), outcome(2, 0.14, 12, "other bits"))
    assert not other.kept and other.equal == 1


def test_the_table_says_which_promise_was_broken() -> None:
    rows = table(
        [compared("ddp", outcome(0, 0.10, 12)), compared("diloco", outcome(0, 0.2, 11))]
    ).splitlines()
    assert "| `GradientSync` | 12 in 1 trainings | the same bits | 0.1200 ± 0.0200 |" in rows[2]
    assert "1 of 1 have the same bits" in rows[2] and rows[2].endswith("| yes |")
    assert "| within 2 σ | 0.1200 ± 0.0200 | 0.2000 (0.2000 to 0.2000) | +4.00 σ |" in rows[3]
    assert rows[3].endswith("| **no** |")


def test_the_figure_has_each_training() -> None:
    text = draw([compared(name, outcome(0, 0.13, 12), outcome(1, 0.11, 11)) for name in ALGORITHMS])
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}circle")) == 1 + 3 * len(ALGORITHMS)
    crosses = [one for one in root.findall(f"{space}path") if one.get("stroke")]
    assert len(crosses) == 1 + 2 * len(ALGORITHMS)
    shown = {one.text for one in root.findall(f"{space}text")}
    assert {algorithm.title for algorithm in ALGORITHMS.values()} <= shown and "23 killed" in shown


def test_the_command_compares_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, int, int, int]] = []

    def pretend(folder: Path, name: str, seed: int, steps: int, deaths: Sequence[Deaths] = ()) -> Outcome:
        kills = sum(len(one.kills) for one in deaths)
        calls.append((name, seed, steps, kills))
        return outcome(seed, LOSSES[seed] + (0.1 if kills and name == "diloco" else 0), kills)

    monkeypatch.setattr(command, "train", pretend)
    out, page, figure = (tmp_path / name for name in ("out.json", "page.md", "figure.svg"))
    page.write_text(f"{begin(command.COMMAND)}\n{END}\n")
    monkeypatch.setattr(command, "PAGE", page)
    monkeypatch.setattr(command, "FIGURE", figure)
    words = ["--seeds", "3", "--kills", "5", "--steps", "400", "--out", str(out), "--docs"]
    assert command.main(["--only", "ddp", *words]) == 0
    assert [call[:3] for call in calls] == [("ddp", seed, 400) for seed in (0, 1, 2, 0, 1, 2)]
    assert [bool(call[3]) for call in calls] == [False] * 3 + [True] * 3
    found: dict[str, Any] = json.loads(out.read_text())["ddp"]
    assert found["kept"] and found["equal"] == 3 and len(found["deaths"]) == 3
    assert "GradientSync" in figure.read_text() and "GradientSync" in page.read_text()
    assert "GradientSync" in capsys.readouterr().out
    assert command.main(["--only", "diloco", *words]) == 1
    assert [call[0] for call in calls[6:]] == ["diloco"] * 6
    said = capsys.readouterr().out
    assert "| `GradientSync` |" in said and "| `DiLoCo` |" in said  # the former is kept, not run again


def test_a_deviation_needs_two_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(["--seeds", "1"])
    assert "needs two" in capsys.readouterr().err
