"""Whether a user, by the number that the kernel shows, is this process's own.

In a user namespace one number (65534, usually) stands for everybody whom the namespace does not know. A
process may run under that number itself, as 'nobody' in a container does; then others may look like it.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

_NOBODY = 65534  # Linux's own choice, where /proc does not say
_ALL = (1 << 32) - 1  # users that there can be: the last number means none
_MAP = Path("/proc/self/uid_map")


def is_me(user: int) -> bool:
    """Whether a number stands for the user of this process, and for nobody else."""
    return user == os.geteuid() and is_known(user)


def is_known(user: int) -> bool:
    """Whether a number stands for one user: all do but the one of strangers to this user namespace."""
    return user != overflow() or _knows_all()


@functools.cache
def overflow() -> int:
    """The number that stands for users whom a user namespace does not know."""
    try:
        with open("/proc/sys/kernel/overflowuid", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _NOBODY


def _knows_all() -> bool:
    """Whether there are no strangers to this user namespace, as in the first one."""
    if sys.platform != "linux":
        return True
    try:
        return sum(int(line.split()[2]) for line in _MAP.read_bytes().splitlines()) >= _ALL
    except FileNotFoundError:
        return not os.path.exists("/proc/self")  # a kernel without user namespaces
    except (OSError, ValueError, IndexError):
        return False
