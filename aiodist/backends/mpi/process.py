"""What one process has of MPI: the thread of its calls, from the first group to the last; and its end.

A request of MPI cannot be taken back. When a group breaks, those that are open stay so: their memory is kept
for ever, since MPI may write there yet, and the process is to end. At its end MPI waits for the other
processes. If one hangs, which may be why the group broke, that would be for ever: so it is bounded then.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import threading
from collections.abc import Callable

from aiodist.backends.mpi.library import Library
from aiodist.backends.mpi.progress import Posted, Progress

LINGER = 10.0
"""Seconds that MPI may wait for others at the end of a process that has open requests."""

_STOP = 1.0  # seconds for a thread to come back from the call that it is in


class Process:
    """The state of one process. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._users = 0
        self._library: Library | None = None
        self._progress: Progress | None = None
        self._thread: threading.Thread | None = None
        self._stuck: set[threading.Thread] = set()
        self.quarantine: list[Posted] = []

    def hold(self, library: Library) -> Progress:
        """The progress of this process, until `release`."""
        with self._lock:
            if self._library is None:
                self._library = library
                atexit.register(self.leave)
            self._users += 1
            if self._progress is None:
                self._progress = Progress(library.test)
                self._thread = threading.Thread(
                    target=self._run, args=(self._progress, self._thread), name="aiodist-mpi", daemon=True
                )
                self._thread.start()
            return self._progress

    def release(self) -> None:
        """Let it end if nobody else holds it."""
        with self._lock:
            self._users -= 1
            if not self._users and self._progress is not None:
                self._progress.end()
                self._progress = None

    def _run(self, progress: Progress, before: threading.Thread | None) -> None:
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
        """At the end of the interpreter."""
        library = self._library
        if library is None or os.getpid() != self._pid or library.mpi.Is_finalized():
            return
        thread = self._thread
        with self._lock:
            if self._progress is not None:
                self._progress.end()
        if thread is not None:
            thread.join(_STOP)
        if self._stuck or (thread is not None and thread.is_alive()):
            _say("a call of MPI does not come back; ending the MPI job")
            library.mpi.COMM_WORLD.Abort(1)
        requests = [posted.request for posted in self.quarantine]
        still_open = len(requests) - len(library.test(requests, self.quarantine))
        if still_open:
            _say(
                f"{still_open} operations of MPI are open that cannot be taken back; "
                f"waiting at most {LINGER:g} s for the other processes to end"
            )
            faulthandler.dump_traceback_later(LINGER, exit=True, file=2)  # MPI_Finalize holds the interpreter
        if still_open or library.ours:
            library.mpi.Finalize()
        if still_open:
            faulthandler.cancel_dump_traceback_later()


def _say(words: str) -> None:
    print(f"aiodist: {words}", file=sys.stderr, flush=True)


this = Process()
