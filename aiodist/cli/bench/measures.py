"""From seconds to figures: bandwidths as nccl-tests define them, spreads, and how often to repeat. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from aiodist.base.errors import UsageError

SIZES = tuple(8 << shift for shift in (0, 3, 7, 10, 13, 15, 17, 19, 21, 23, 25))  # 8 B … 256 MiB
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SAMPLE = 5e-3  # seconds that one sample lasts at least: shorter operations are timed many at once
_MOST_SAMPLES = 50


@dataclass(frozen=True)
class Spread:
    """Some measurements of one thing, in its unit."""

    median: float
    low: float
    high: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Median, 10% and 90% quantile."""
    return Spread(quantile(values, 0.5), quantile(values, 0.1), quantile(values, 0.9), len(values))


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, interpolated."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def bus_factor(what: str, size: int) -> float:
    """busbw / algbw: what the links carry for each byte of the operation's size."""
    match what:
        case "all_reduce":
            return 2 * (size - 1) / size
        case "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter":
            return (size - 1) / size
        case _:
            return 1.0


def busbw(what: str, nbytes: int, size: int, seconds: float) -> float:
    """Bytes per second over the links, as nccl-tests define it."""
    return nbytes * bus_factor(what, size) / seconds


def repeats(seconds: float, budget: float) -> tuple[int, int]:
    """Divide a budget among runs of an operation that takes about so long.

    Returns:
        (samples, operations in each); at least one of one.
    """
    seconds = max(seconds, 1e-9)
    inner = max(1, math.ceil(_SAMPLE / seconds)) if seconds < _SAMPLE / 2 else 1
    samples = round(budget / (seconds * inner))
    return max(1, min(_MOST_SAMPLES, samples)), inner


def parse_size(text: str) -> int:
    """'8', '64KiB', '1M' → bytes; `UsageError` where it is none of these."""
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(i?b)?", text.strip().lower())
    if match is None or not int(match[1]):
        raise UsageError(f"{text!r} is not a size", hint="For example: 8, 64KiB, 1M")
    return int(match[1]) * _UNITS[match[2]]


def show_size(nbytes: int) -> str:
    """'8 B', '64 KiB', '1.5 MiB'."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} B"


def show_seconds(seconds: float) -> str:
    """'1.32 µs', '12.5 ms', '3.10 s'."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * scale:  # what is rounded up to it has its unit
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def show_value(value: float, unit: str) -> str:
    """A figure in seconds ('s'), bytes ('B'), as a number ('') or as a ratio."""
    if unit == "s":
        return show_seconds(value)
    if not unit:
        return f"{value:,.4g}"
    return show_size(round(value)) if unit == "B" else f"{value:.3g}×"


def show_bandwidth(rate: float) -> str:
    """GB/s with three digits."""
    return f"{rate / 1e9:.3g}"
