"""One process's use of MPI: the thread of its calls, from the first group to the last; and its end.

A request of MPI cannot be taken back. When a group breaks, those that are open stay so: their memory is kept
for ever, since MPI may write there yet, and the process is to end. At its end MPI waits for the other
processes. If one hangs, which may be why a group broke, that would be for ever: so it is bounded then.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable

from aiodist.backends.mpi.library import Library
from aiodist.backends.mpi.progress import MpiProgress, Posted

LINGER = 30.0
"""Seconds that MPI may wait for other processes at the end of one in which a group broke, or hangs."""


class MpiProcess:
    """The state of one process. Any thread may call it.

    Attributes:
        broken: a group broke, or was aborted.
        gave_up: it began to meet the others by MPI, and did not end it.
        quarantine: requests that were open when the thread ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._users = 0
        self._library: Library | None = None
        self._progress: MpiProgress | None = None
        self._thread: threading.Thread | None = None
        self._stuck: set[threading.Thread] = set()
        self.broken = False
        self.gave_up = False
        self.quarantine: list[Posted] = []

    def hold(self, library: Library) -> MpiProgress:
        """The progress of this process, until `release`."""
        with self._lock:
            if self._library is None:
                self._library = library
                atexit.register(self.leave)
            self._users += 1
            if self._progress is None:
                self._progress = MpiProgress(library.test)
                self._thread = threading.Thread(
                    target=self._run, args=(self._progress, self._thread), name="aiodist-mpi", daemon=True
                )
                self._thread.start()
            return self._progress

    def release(self) -> None:
        """Let the progress end if nobody else holds it."""
        with self._lock:
            self._users -= 1
            if not self._users and self._progress is not None:
                self._progress.end()
                self._progress = None

    def _run(self, progress: MpiProgress, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # never two at a time
        self.quarantine += progress.run()

    def aside(self, function: Callable[[], None], name: str) -> None:
        """Run something that may wait for other processes in a thread of its own."""

        def run() -> None:
            try:
                function()
            finally:
                self._stuck.discard(thread)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._stuck.add(thread)
        thread.start()

    def leave(self) -> None:
        """Leave MPI at the end of the interpreter."""
        library = self._library
        if library is None or os.getpid() != self._pid or library.mpi.Is_finalized():
            return
        with self._lock:
            if self._progress is not None:
                self._progress.end()
        until = time.monotonic() + LINGER
        threads = [thread for thread in (self._thread, *self._stuck) if thread is not None]
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            _say("a call of MPI does not come back; ending the MPI job")
            library.mpi.COMM_WORLD.Abort(1)
        requests = [posted.request for posted in self.quarantine]
        still_open = len(requests) - len(library.test(requests, self.quarantine))
        if self.broken or still_open:
            kept = f"it has operations that cannot be taken back ({still_open})"
            why = kept if still_open else "a group broke"
            _say(f"MPI waits at most {LINGER:g} s for the other processes to end: {why}")
            faulthandler.dump_traceback_later(LINGER, exit=True, file=2)  # MPI_Finalize holds the interpreter
            library.mpi.Finalize()
            faulthandler.cancel_dump_traceback_later()


def _say(text: str) -> None:
    sys.stderr.write(f"aiodist: {text}\n")  # at once: others write there, too
    sys.stderr.flush()


this = MpiProcess()
