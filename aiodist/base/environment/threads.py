"""Signals to one thread of a process, on Linux."""

from __future__ import annotations

import ctypes
import sys

_tgkill = getattr(ctypes.CDLL(None), "tgkill", None) if sys.platform == "linux" else None


def send_to_thread(pid: int, thread: int, signum: int) -> bool:
    """Send a signal to a thread → whether it was sent: not where it has ended, or is another user's.

    Args:
        pid: of the process.
        thread: its number in the kernel; the main thread has that of the process.
        signum: which.
    """
    return _tgkill is not None and _tgkill(pid, thread, signum) == 0
