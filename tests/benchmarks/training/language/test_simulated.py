"""The communication of the algorithms, simulated: it ends, and rarer communication takes less of a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aiodist.cli.main import main
from benchmarks.training.language.predict import SCRIPT
from benchmarks.training.language.ways import WAYS

ROOT = Path(__file__).parents[4]
COUNT, FORWARD, BACKWARD, UPDATE = 3_200_000, 0.03, 0.06, 0.01


def step(name: str, capsys: pytest.CaptureFixture[str]) -> float:
    """Seconds of a step on four hosts with links of 100 Mbit/s."""
    sizes = [str(number) for number in (COUNT, FORWARD, BACKWARD, UPDATE)]
    network = ["--network", "hosts=4x1,link=100Mbit/s:50us"]
    assert main(["sim", str(ROOT / SCRIPT), *network, "--", name, *sizes]) == 0
    found: float = json.loads(capsys.readouterr().out.splitlines()[0])["step"]
    return found


def test_steps_take_as_long_as_what_travels(capsys: pytest.CaptureFixture[str]) -> None:
    took = {name: step(name, capsys) for name in WAYS}
    computing, sending = FORWARD + BACKWARD + UPDATE, 2 * 3 / 4 * 4 * COUNT / 12.5e6
    assert sending < took["ddp"] < sending * 1.2 + computing
    assert sending / 4 < took["ddp-int8"] < sending / 4 * 1.3 + computing
    assert took["diloco"] == pytest.approx(computing + sending / 20, rel=0.1)
    assert computing < took["streaming"] < computing * 1.1


def test_the_script_is_short() -> None:
    assert len((ROOT / SCRIPT).read_text().splitlines()) <= 65
