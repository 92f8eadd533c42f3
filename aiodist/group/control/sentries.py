"""Two idle threads of a process, whose end its neighbours see before the process has ended.

The kernel ends a killed process's threads one by one, and the last of them gives the memory back: 64 MiB
that others have mapped, too, take 10 to 60 ms. Only then its pidfd becomes readable and its sockets close.
A thread that sleeps is gone after 0.5 ms, unless it is that last one; of two, one is not. So neighbours watch
both by a pidfd of the thread (Linux 6.9), and, when one ends, ask the kernel whether its process is exiting.

It is no proof of death: another thread of that process may still be about to find out.
"""

from __future__ import annotations

import os
import threading

from aiodist.base.environment.process import stat_fields

_PIDFD_THREAD = os.O_EXCL
_PF_EXITING = 0x4  # of the flags in /proc/<pid>/stat


class Sentries:
    """The sentries of this process. Close them when they need not be watched any more.

    Attributes:
        tids: their thread ids, for neighbours; [] where the kernel cannot watch threads.
    """

    def __init__(self) -> None:
        self._relief = threading.Lock()
        self._relief.acquire()
        self._threads = [
            threading.Thread(target=self._stand, name="aiodist sentry", daemon=True) for _ in "ab"
        ]
        self.tids: list[int] = []
        if can_watch_threads():
            for thread in self._threads:
                thread.start()
            self.tids = [thread.native_id or 0 for thread in self._threads]

    def _stand(self) -> None:
        with self._relief:
            pass

    def close(self) -> None:
        """Let them go. May be called twice."""
        if self.tids:
            self.tids = []
            self._relief.release()
            for thread in self._threads:
                thread.join()


def can_watch_threads() -> bool:
    """Whether this kernel has a pidfd for a thread."""
    try:
        os.close(open_thread(threading.get_native_id()))
    except (AttributeError, OSError):
        return False
    return True


def open_thread(tid: int) -> int:
    """A pidfd of a thread. `OSError` where there is no such thread, or the kernel is older than Linux 6.9."""
    return os.pidfd_open(tid, _PIDFD_THREAD)


def is_exiting(pid: int) -> bool:
    """Whether the kernel is taking this process down, or has. False where that cannot be seen just now."""
    try:
        fields = stat_fields(pid)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # for want of a descriptor, say
        return False
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)
