"""Timeouts: seconds or a timedelta, as everywhere. The launcher needs this, and no NumPy."""

from __future__ import annotations

from datetime import timedelta

from aiodist.errors import UsageError

Timeout = float | timedelta | None


def seconds(timeout: float | timedelta, name: str = "timeout") -> float:
    """A timeout as seconds; `UsageError` unless it is a positive number."""
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and value > 0:
            return float(value)
    except OverflowError:  # an integer beyond every float
        pass
    raise UsageError(f"{name} must be a positive number of seconds or a timedelta, got {timeout!r:.100}")
