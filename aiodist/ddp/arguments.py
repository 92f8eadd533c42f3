"""Checks on what users pass to the training classes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

from aiodist.backends.arrays import overlaps
from aiodist.base.errors import UsageError, shown

Array = npt.NDArray[Any]


def listed(arrays: Any, name: str, owner: str) -> list[Any]:
    """A list of arrays; a single array is refused, since it would be taken for the list of its rows.

    Args:
        name: of the argument.
        owner: of the class, for the hint.
    """
    try:
        if not hasattr(arrays, "shape"):
            return list(arrays)
    except Exception:  # its own errors, whatever it is
        raise UsageError(f"{name} must be a list of arrays, got {shown(arrays)}") from None
    raise UsageError(f"{name} is a single array", hint=f"Pass a list: {owner}(pg, [weights, bias])")


def number(value: Any, name: str, least: float = 0.0, most: float = math.inf) -> float:
    """A finite number in a range."""
    try:
        found = float(value)
    except Exception:  # of whatever kind it is
        found = math.nan
    if not (least <= found <= most and math.isfinite(found)):
        limits = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise UsageError(f"{name} must be a number, {limits}, got {shown(value)}")
    return found


def check_disjoint(arrays: Iterable[tuple[str, Array]]) -> None:
    """Check that arrays which are written share no memory: each would undo what the other was given.

    Args:
        arrays: what errors call them, and they.

    Raises:
        UsageError: two of them share a byte.
    """
    placed = [(*_bounds(one), name, one) for name, one in arrays if one.size]
    reaching: list[tuple[int, str, Array]] = []  # those before that end behind where the next one begins
    for low, high, name, one in sorted(placed, key=lambda place: place[:2]):
        reaching = [other for other in reaching if other[0] > low]
        for _, other_name, other in reaching:
            if overlaps(one, other):
                first, second = sorted((name, other_name))
                raise UsageError(
                    f"{first} and {second} share memory", hint="Pass each array once, and copies of views"
                )
        reaching.append((high, name, one))


def _bounds(array: Array) -> tuple[int, int]:
    """The addresses of the first byte and behind the last one."""
    at = array.__array_interface__["data"][0]
    spans = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    return at + sum(min(0, span) for span in spans), at + sum(max(0, span) for span in spans) + array.itemsize
