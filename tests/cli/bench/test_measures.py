"""Statistics, bandwidths, how often to repeat, and units."""

from __future__ import annotations

import pytest

from aiodist.base.errors import UsageError
from aiodist.cli.bench.measures import (
    SIZES,
    busbw,
    parse_size,
    quantile,
    repeats,
    show_seconds,
    show_size,
    show_value,
    spread,
)


def test_sizes_go_from_8_bytes_to_256_mib() -> None:
    assert [show_size(size) for size in SIZES] == (
        [
            "8 B",
            "64 B",
            "1 KiB",
            "8 KiB",
            "64 KiB",
            "256 KiB",
            "1 MiB",
            "4 MiB",
            "16 MiB",
            "64 MiB",
            "256 MiB",
        ]
    )


def test_quantiles_are_interpolated() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2
    assert quantile([1.0, 2.0], 0.5) == 1.5
    assert quantile([1.0, 2.0], 1.0) == 2
    assert quantile([7.0], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_a_spread_has_the_median_between_its_ends() -> None:
    found = spread([float(number) for number in range(101)])
    assert (found.low, found.median, found.high, found.count) == (10, 50, 90, 101)


@pytest.mark.parametrize(
    ("what", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("gather", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("p2p", 1.0),
    ],
)
def test_busbw_is_what_nccl_tests_define(what: str, factor: float) -> None:
    assert busbw(what, 1000, 4, 0.5) == pytest.approx(2000 * factor)


def test_short_operations_are_timed_many_at_once() -> None:
    samples, inner = repeats(1e-6, 0.05)
    assert inner >= 5000
    assert samples * inner * 1e-6 == pytest.approx(0.05, rel=0.2)
    assert repeats(0.01, 0.05) == (5, 1)
    assert repeats(10.0, 0.05) == (1, 1)
    assert repeats(0.0, 0.05)[0] >= 1


@pytest.mark.parametrize(
    ("text", "nbytes"), [("8", 8), ("64KiB", 64 << 10), ("1M", 1 << 20), ("2gb", 2 << 30), ("16 B", 16)]
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5M", "MiB", "8 apples"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_figures_read_well() -> None:
    assert [show_seconds(value) for value in (1.2345e-6, 0.0125, 3.1)] == ["1.23 µs", "12.5 ms", "3.1 s"]
    assert [show_seconds(value) for value in (0.9994, 0.9996, 0.0009996)] == ["999 ms", "1 s", "1 ms"]
    values = [(1.5, "ratio"), (1 << 20, "B"), (2, "s"), (256, "")]
    assert [show_value(value, unit) for value, unit in values] == ["1.5×", "1 MiB", "2 s", "256"]
