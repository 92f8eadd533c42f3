"""Which process ids mean what here: containers that share memory may use the same numbers."""

from __future__ import annotations

import os


def pid_space() -> int:
    """The number of this process's pid namespace; 0: there is none that is known."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def proc_is_ours() -> bool:
    """Whether /proc tells of processes by the ids that they have for this process."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False
