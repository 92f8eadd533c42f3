"""The number of cores that this process may use: its affinity, and the quota of its container."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # the container's own


def affinity() -> int:
    """CPUs that the process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota(path: Path = _QUOTA) -> float | None:
    """CPUs' worth of time that its container may use, None: as much as it likes."""
    try:
        allowed, period = path.read_text().split()
        return int(allowed) / int(period)
    except (OSError, ValueError):  # no cgroup v2, or 'max'
        return None


def cores() -> float:
    """The number of its threads that can run at once."""
    limit = quota()
    return affinity() if limit is None else min(affinity(), limit)
