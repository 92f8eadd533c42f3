"""Numbers for people: times, bytes, rates; five characters or so. Pure."""

from __future__ import annotations

import time

UNKNOWN = "·"
"""In place of what is not known."""


def span(seconds: float) -> str:
    """'12 ms', '3.4 s', '42 s', '5 min', '3 h', '2 d'."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for unit, size, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def time_of_day(wall: float) -> str:
    """'at 13:26:35 UTC', of a time in seconds since 1970, whatever was told as one."""
    return time.strftime("at %H:%M:%S UTC", time.gmtime(min(max(wall, 0.0), 4e9)))


def size(nbytes: float | None) -> str:
    """'12 B', '3.4 MB', '42 GB'; '·' for None."""
    return UNKNOWN if nbytes is None else _scaled(nbytes, ("B", "kB", "MB", "GB", "TB", "PB"))


def rate(number: float | None) -> str:
    """'0.5', '12', '3.4 k'; '·' for None."""
    return UNKNOWN if number is None else _scaled(number, ("", "k", "M", "G")).rstrip()


def share(part: float | None) -> str:
    """'12 %'; '·' for None."""
    return UNKNOWN if part is None else f"{part * 100:.0f} %"


def _scaled(number: float, units: tuple[str, ...]) -> str:
    power = 0
    while number >= 999.5 and power < len(units) - 1:
        number /= 1000
        power += 1
    whole = number >= 9.95 or number == int(number)
    return f"{number:.0f} {units[power]}" if whole else f"{number:.1f} {units[power]}"
