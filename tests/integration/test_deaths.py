"""Trainings under the launcher in which ranks are killed at random: they end as the algorithm promises."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.training.digits.algorithms import ALGORITHMS
from benchmarks.training.digits.command import compare

COSTLY = "half a second of CPU, or more"  # written out: ranks run this file, and find no other tests

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform"),
    pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed"),
]


@pytest.mark.slow(COSTLY)
def test_the_bits_are_those_of_a_training_without_deaths(tmp_path: Path) -> None:
    found = compare(tmp_path, "ddp", [7], [7], steps=200, kills=2)
    assert found.kills >= 2
    assert found.equal == 1, found


EXACT = [name for name, one in ALGORITHMS.items() if one.equal]
CLOSE = [name for name, one in ALGORITHMS.items() if not one.equal]


@pytest.mark.slow("four trainings, in two of which ranks are killed")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", EXACT)
def test_the_bits_stay_the_same_through_ten_deaths(tmp_path: Path, name: str) -> None:
    found = compare(tmp_path, name, range(2), range(2), steps=400, kills=6)
    assert found.kills >= 10
    assert found.equal == 2, found


@pytest.mark.slow("eight trainings, in three of which ranks are killed")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CLOSE)
def test_ten_deaths_do_not_change_what_is_learned(tmp_path: Path, name: str) -> None:
    """The bound is worked out here, from the same seeds without deaths."""
    found = compare(tmp_path, name, range(5), range(3), steps=800, kills=5)
    assert found.kills >= 10
    assert len({one.weights for one in found.without}) == 5, "seeds differ"
    assert 0 < found.deviation < found.mean / 4, "so the bound says something"
    assert all(one.accuracy > 0.93 for one in (*found.without, *found.deaths))
    assert found.kept, f"{found.apart:+.2f} deviations from {found.mean}, {found.equal} equal: {found}"
