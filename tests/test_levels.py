"""The levels of tests, and the shares that runs take by turns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.levels import COSTLY, in_share

ROOT = Path(__file__).parents[1]


@given(st.text(), st.integers(1, 9))
def test_each_test_is_in_one_share(name: str, count: int) -> None:
    assert sum(in_share(name, f"{number}/{count}") for number in range(count)) == 1


def collected(*share: str) -> set[str]:
    arguments = ["--collect-only", "-q", "-p", "no:cacheprovider", "-m", "", "tests/net/wire/test_frame.py"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *share, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line for line in ran.stdout.splitlines() if "::" in line}


@pytest.mark.slow(COSTLY)
def test_the_shares_of_a_file_are_all_its_tests() -> None:
    shares = [collected("--share", f"{number}/3") for number in range(3)]
    everything = collected()
    assert set().union(*shares) == everything
    assert sum(map(len, shares)) == len(everything)
    assert all(shares)
