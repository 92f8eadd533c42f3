"""Checks on what users pass to the training classes."""

from __future__ import annotations

import math
from typing import Any

from aiodist.errors import UsageError, shown


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
