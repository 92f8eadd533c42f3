"""Timeouts: seconds or a timedelta, as everywhere, and in words. The launcher needs this, and no NumPy."""

from __future__ import annotations

from datetime import timedelta

from aiodist.base.errors import UsageError, shown

Timeout = float | timedelta | None


def seconds(timeout: float | timedelta, name: str = "timeout") -> float:
    """A timeout as seconds; `UsageError` unless it is a positive number."""
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and value > 0:
            return float(value)
    except OverflowError:  # an integer beyond every float
        pass
    raise UsageError(f"{name} must be a positive number of seconds or a timedelta, got {shown(timeout)}")


def spoken(seconds: float) -> str:
    """A duration for people, such as '300 s', '0.25 s' or 'less than 1 ms': three digits say enough.

    Args:
        seconds: what was waited for, or what is left of a time; below 0 counts as 0.
    """
    if seconds < 0.001:
        return "less than 1 ms"
    return f"{seconds:.0f} s" if seconds >= 100 else f"{float(f'{seconds:.3g}'):g} s"
