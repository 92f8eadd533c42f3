"""Shortages of this very host that a call to the system meets: descriptors, memory, ports, a permission.

A connection that fails for that says nothing of the peer. So this is asked before a peer is accused.
"""

from __future__ import annotations

import contextlib
import errno
from typing import NamedTuple

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Numbers of errors that may be over in a second."""

NO_MEMORY = (errno.ENOBUFS, errno.ENOMEM)
"""Errors of a socket for which its host has no memory now: what was to be sent may be offered again."""

AGAIN = 0.05
"""Seconds until it is. Until then the socket is not watched: it may be writable, all the same."""


class Shortage(NamedTuple):
    """A shortage of this host or process.

    Attributes:
        what: in words that follow a subject: 'has no file descriptor left (its limit is 256)'.
        hint: what to do.
    """

    what: str
    hint: str


def shortage(error: BaseException | None) -> Shortage | None:
    """The shortage that an error, or what caused it, comes from; None: not from one."""
    while error is not None:
        if isinstance(error, OSError) and (found := _of(error.errno)) is not None:
            return found
        error = error.__cause__
    return None


def _of(number: int | None) -> Shortage | None:
    match number:
        case errno.EMFILE:
            return Shortage(f"has no file descriptor left (its limit is {_descriptors()})", _LIMIT)
        case errno.ETOOMANYREFS:
            return Shortage("has too many file descriptors on their way to other processes", _LIMIT)
        case errno.ENFILE:
            return Shortage("is on a host that can open no more files", "Raise fs.file-max there (sysctl)")
        case errno.ENOBUFS | errno.ENOMEM:
            return Shortage(
                "gets no memory from its host",
                "Free memory there, or raise the limits (ulimit -v, the container's)",
            )
        case errno.EADDRNOTAVAIL:
            return Shortage(
                "has no local port left",
                "Widen net.ipv4.ip_local_port_range on its host (sysctl), or end what holds the ports",
            )
        case errno.EACCES | errno.EPERM:
            return Shortage("is not allowed to by its own host", "See its firewall's rules, or its sandbox's")
    return None


MOST = 1 << 20
"""Descriptors that a process is given where nothing limits them."""


def raise_descriptors(enough: int = MOST) -> None:
    """Let this process have so many descriptors, as far as its hard limit lets; who has more keeps them."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = min(enough, MOST if hard == resource.RLIM_INFINITY else hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


_LIMIT = "Raise the limit in the shell that starts it, ulimit -n 65536 say, or have it close what it can"


def _descriptors() -> str:
    try:
        import resource
    except ImportError:  # not a Unix
        return "unknown"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
