"""Timeouts are seconds or timedeltas, positive, and nothing else."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

import aiodist as dist
from aiodist.base.timeouts import seconds, spoken


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


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (300, "300 s"),
        (86_400.0, "86400 s"),
        (1234.5, "1234 s"),
        (100, "100 s"),
        (99.96, "100 s"),
        (2.5, "2.5 s"),
        (0.123456, "0.123 s"),
        (0.001, "0.001 s"),
        (0.000290624, "less than 1 ms"),
        (0, "less than 1 ms"),
        (-1.0, "less than 1 ms"),
        (math.inf, "inf s"),
    ],
)
def test_what_people_read(duration: float, words: str) -> None:
    assert spoken(duration) == words
