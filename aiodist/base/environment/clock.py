"""Which monotonic clock this process reads."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


def clock_id() -> str:
    """A name of the monotonic clock: processes that have the same one read the same clock.

    It is made of the boot's id and the time namespace: containers of one host may have other clocks. Where
    the system tells neither, no other process is sure to read the same one.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.stat("/proc/self/ns/time").st_ino
    except OSError:  # no Linux, or one that knows no time namespaces
        return _own()
    return f"{boot} {space}"


@cache
def _own() -> str:
    """A name that no other process has, whatever its id is in a container; a forked child keeps the clock."""
    return f"process {os.getpid()} {os.urandom(8).hex()}"
