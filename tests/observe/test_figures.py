"""Numbers for people: short, and never wrong by more than they show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.figures import rate, share, size, span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0124, "12 ms"),
        (0.9996, "1.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (99.0, "99 s"),
        (100.0, "2 min"),
        (7200.0, "2 h"),
        (2 * 86400.0, "2 d"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_others() -> None:
    assert [size(None), size(0), size(12), size(1e3), size(3.44e6), size(5e20)] == [
        *("·", "0 B", "12 B", "1 kB", "3.4 MB", "500000 PB")
    ]
    assert [rate(None), rate(0.0), rate(0.5), rate(12), rate(3440), rate(5e15)] == [
        *("·", "0", "0.5", "12", "3.4 k", "5000000 G")
    ]
    assert [share(None), share(0.123), share(4.0)] == ["·", "12 %", "400 %"]


@given(st.floats(0, 1e15))
def test_a_size_is_short_and_right(nbytes: float) -> None:
    number, unit = size(nbytes).split()
    assert len(number) <= 4
    scale = 1000.0 ** ["B", "kB", "MB", "GB", "TB", "PB"].index(unit)
    assert abs(float(number) * scale - nbytes) <= 0.0501 * max(nbytes, scale)
