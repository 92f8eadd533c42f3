"""Nothing outlives the agent, however it ends.

A worker asks the kernel to be killed with its parent (PR_SET_PDEATHSIG), but what the worker started
itself is not covered, and only Linux has it. So the agent forks a guardian before anything else: a
process that holds one end of a pipe, knows the workers' process groups, and kills them when the pipe
ends. A SIGKILLed agent leaves nothing; after a regular end there is nothing left to kill.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


class Guardian:
    """The agent's handle on its guardian. `start` must precede threads and the event loop."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd = fd

    @classmethod
    def start(cls) -> Guardian:
        """Fork it."""
        read_end, write_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(write_end)
                _watch(read_end)
            finally:
                os._exit(0)
        os.close(read_end)
        return cls(pid, write_end)

    def add(self, group: int) -> None:
        """This process group is ours."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """This process group has ended; its number may soon be somebody else's."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        try:
            os.write(self._fd, line.encode())
        except OSError:  # somebody killed the guardian; PDEATHSIG is left
            pass

    def close(self) -> None:
        """End it; returns when it has ended. Kills the groups that were not removed."""
        os.close(self._fd)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass


def _watch(fd: int) -> None:
    """The guardian's whole life."""
    os.setsid()  # a signal to the agent's process group, or its terminal, is not for us
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    kept = os.dup2(fd, 3) if fd != 3 else 3
    os.closerange(4, 1 << 16)
    groups: set[int] = set()
    partial = b""
    while data := os.read(kept, 65536):
        *lines, partial = (partial + data).split(b"\n")
        for line in lines:
            if line[:1] == b"+":
                groups.add(int(line[1:]))
            else:
                groups.discard(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass


def die_with_parent() -> Callable[[], None]:
    """A function for the child, between fork and exec: be killed when the parent's thread ends.

    Everything that could allocate or import is done here, in the parent. Must be called, and the
    child forked, in the main thread: the kernel watches the thread, not the process.
    """
    parent = os.getpid()
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    zero = ctypes.c_ulong(0)
    option, signum = ctypes.c_int(_PR_SET_PDEATHSIG), ctypes.c_ulong(signal.SIGKILL)

    def tie() -> None:
        prctl(option, signum, zero, zero, zero)
        if os.getppid() != parent:  # it was gone before we asked
            os._exit(128 + signal.SIGKILL)

    return tie
