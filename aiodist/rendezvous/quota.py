"""The number of clients that each job of a server may have: none takes the descriptors of the others."""

from __future__ import annotations

import resource

_OWN = 64  # descriptors of a server itself: sockets that listen, its folder, the interpreter's
_OF_A_JOB = 4  # of each job: its files, one more while they are replaced, its folder


def clients_of_each(jobs: int, unauthenticated: int, descriptors: int) -> int:
    """Clients that each job may have.

    Args:
        jobs: that are served.
        unauthenticated: connections that have not proved themselves, of each of two kinds (`net.admission`).
        descriptors: that this process may have; 0 for as many as it likes.

    Returns:
        As many that all jobs and all unauthenticated ones find room at once; 1 at least.
    """
    if descriptors <= 0:
        descriptors = 1 << 30
    left = descriptors - _OWN - 2 * unauthenticated - _OF_A_JOB * jobs
    return max(1, left // max(1, jobs))


def descriptors() -> int:
    """The number that this process may have; 0 for no limit."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, soft)
