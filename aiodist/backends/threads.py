"""Work in a thread, and from there back to the loop: calls, and the ends of futures.

A closed loop is told nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from aiodist.net.tasks import settle

T = TypeVar("T")


class Worker:
    """A thread that runs jobs, one after the other, in the order in which they were submitted.

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

    def join(self, seconds: float | None = None) -> bool:
        """Wait for the end of the thread → whether it has come. None: as long as it takes."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # what it holds is not kept until the next one comes


def post(loop: Any, callback: Callable[..., object], *arguments: Any) -> None:
    """Call on a loop, from any thread; nothing where the loop is closed: nobody waits any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


def fulfil(future: asyncio.Future[T], job: Callable[[], T]) -> None:
    """Run a job in this thread; a future has its result, or what it raised."""
    try:
        result = job()
    except Exception as error:
        post(future.get_loop(), settle, future, None, error)
    else:
        post(future.get_loop(), settle, future, result)
