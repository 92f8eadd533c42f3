"""A thread that gives a device its work, one job after the other, in the order in which they were submitted.

A call into the driver, or into NCCL, may block for long; and two ranks that launch in different orders would
wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Launcher:
    """The launcher of a device's work; see the module.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after all before it. It does not raise."""
        self._jobs.put(job)

    def end(self) -> None:
        """End the thread after the jobs that it was given."""
        self._jobs.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread → whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # what it holds is not kept until the next one comes
