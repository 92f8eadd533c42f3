"""A signal to a process's main thread, where Python runs its handlers.

The kernel gives a process's signal to any of its threads if the main one is stopped just then. That thread
takes it, and a sleep or a read of the main thread goes on until it ends by itself.
"""

from __future__ import annotations

import os
import sys

from aiodist.base.environment.threads import send_to_thread


def send_to_main_thread(pid: int, signum: int) -> None:
    """Send a signal to the main thread, or to the process if its main thread has ended or blocks it.

    Args:
        pid: a child of the caller that nobody else collects, so that no other process gets its number.
        signum: which.

    Raises:
        OSError: the process has ended, or is another user's.
    """
    if sys.platform != "linux" or not _takes(pid, signum) or not send_to_thread(pid, pid, signum):
        os.kill(pid, signum)


def _takes(pid: int, signum: int) -> bool:
    with open(f"/proc/{pid}/status", errors="replace") as file:  # its name may be no UTF-8
        status = dict(line.split(":", 1) for line in file if ":" in line)
    return status["State"].split()[0] not in "ZX" and not int(status["SigBlk"], 16) >> (signum - 1) & 1
