"""All that a process has started, and its end.

A subreaper (Linux) is who orphans go to, however often they forked, and whatever session they opened. So
while it has a child, something of what it watches is left; and when it has none, nothing is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from aiodist.base.environment.process import stat_fields

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def adopt_orphans() -> bool:
    """Have orphans among this process's descendants become its children; False where that cannot be had."""
    zero = ctypes.c_ulong(0)
    return _prctl is not None and _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), zero, zero, zero) == 0


def die_with_parent() -> Callable[[], None]:
    """A function for the child, between fork and exec: be killed when the parent's thread ends.

    Everything that could allocate or import is done here, in the parent. Must be called, and the
    child forked, in the main thread: the kernel watches the thread, not the process.
    """
    parent, prctl, zero = os.getpid(), _prctl, ctypes.c_ulong(0)
    if prctl is None:
        return lambda: None
    option, signum = ctypes.c_int(_PR_SET_PDEATHSIG), ctypes.c_ulong(signal.SIGKILL)

    def tie_to_parent() -> None:
        prctl(option, signum, zero, zero, zero)
        if os.getppid() != parent:  # it was gone before we asked
            os._exit(128 + signal.SIGKILL)

    return tie_to_parent


def wake_with_parents_end() -> None:
    """Have this process go on, if it is stopped (SIGSTOP), when the parent's thread ends."""
    if _prctl is not None:
        zero = ctypes.c_ulong(0)
        _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGCONT), zero, zero, zero)


def reap() -> dict[int, int]:
    """Take the children that have ended → pid to exit code, negative: the signal that killed it.

    Raises:
        ChildProcessError: there is none, living or ended.
    """
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            if ended:
                return ended
            raise
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def descendants() -> set[int]:
    """This process's children, theirs, and so on. What is forked meanwhile may be missed."""
    me = os.getpid()
    children = _listed if os.path.exists(f"/proc/{me}/task/{me}/children") else _counted()
    found: set[int] = set()
    new = children(me)
    while new:
        found |= new
        new = {child for parent in new for child in children(parent)} - found
    return found


def members(group: int) -> set[int]:
    """The living processes of a process group. (Zombies stay for ever where no init collects them.)"""
    return {pid for pid, (state, _, its_group) in _all() if int(its_group) == group and state not in "ZX"}


def send(signum: int, pids: set[int], listed: Callable[[], set[int]]) -> None:
    """Send a signal to processes, and to no other that has got one's number meanwhile.

    Args:
        signum: which.
        pids: to whom.
        listed: who is meant, looked up anew: once a number is held, it is a process of these or of nobody.
    """
    held: dict[int, int] = {}
    try:
        for pid in pids:
            with suppress(OSError):
                held[pid] = os.pidfd_open(pid)
        for pid in listed() & held.keys():
            with suppress(OSError):  # it has ended, or is another user's
                signal.pidfd_send_signal(held[pid], signum)
    finally:
        for fd in held.values():
            os.close(fd)


def _listed(parent: int) -> set[int]:
    """A process's children, as the kernel lists them by the thread that forked them."""
    found: set[int] = set()
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            with suppress(OSError), open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                found |= {int(pid) for pid in file.read().split()}
    return found


def _counted() -> Callable[[int], set[int]]:
    """A function like `_listed`, for kernels without such lists: from the parent that each process names."""
    children: dict[int, set[int]] = {}
    for pid, (_, parent, _) in _all():
        children.setdefault(int(parent), set()).add(pid)
    return lambda parent: children.get(parent, set())


def _all() -> list[tuple[int, list[str]]]:
    """Every process with its state, its parent and its group."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):  # it has gone meanwhile
                found.append((int(name), stat_fields(int(name))[:3]))
    return found
