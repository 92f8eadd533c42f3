"""Timeouts: seconds or a timedelta, as everywhere. The launcher needs this, and no NumPy."""

from __future__ import annotations

from datetime import timedelta

from aiodist.errors import UsageError

Timeout = float | timedelta | None


def seconds(timeout: float | timedelta, name: str = "timeout") -> float:
    """A timeout as seconds; `UsageError` unless it is a positive number."""
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"{name} must be a positive number of seconds or a timedelta, got {timeout!r}")
    return float(value)
