"""Timeouts are seconds or timedeltas, positive, and nothing else."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

import aiodist as dist
from aiodist.timeouts import seconds


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (3, 3.0),
        (0.25, 0.25),
        (timedelta(milliseconds=1500), 1.5),
        (timedelta(days=2), 172_800.0),
        (math.inf, math.inf),
    ],
)
def test_numbers_and_timedeltas(given: Any, expected: float) -> None:
    got = seconds(given)
    assert got == expected
    assert type(got) is float


@pytest.mark.parametrize(
    "nonsense", [0, -1, 0.0, math.nan, True, "3", None, timedelta(0), timedelta(-1), [], 10**400]
)
def test_nonsense_is_refused_with_the_argument_named(nonsense: Any) -> None:
    with pytest.raises(dist.UsageError, match=r"^patience must be a positive number of seconds"):
        seconds(nonsense, "patience")
