"""A thread for work that would hold the loop too long (law 7).

NumPy releases the GIL in the loops that matter, so one thread beside the loop is enough; it takes jobs
in order. A simulation runs them inline instead: threads have no place in virtual time.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from functools import partial

from aiodist.backends.arrays.kernels import INLINE_NS
from aiodist.backends.threads import Worker, post


class Offload:
    """A runner of jobs off the loop, which calls back on it.

    Args:
        loop: where `done` is called.
        inline: run every job at once on the caller's thread (for simulations).

    Attributes:
        inline: as given.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, inline: bool = False) -> None:
        self._loop = loop
        self.inline = inline
        self._worker: Worker | None = None

    def run(
        self,
        cost_ns: float,
        job: Callable[[], None],
        done: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> bool:
        """Do a job of a known cost. If it raises (no memory, say), `failed(error)` is called on the loop,
        and then all goes on as if it were done: `failed` makes sure that nobody uses the result.

        Returns:
            True: it was cheap and is done already; `done` is not called. False: `done()` follows, on the
            loop.
        """
        if cost_ns <= INLINE_NS or self.inline:
            try:
                job()
            except Exception as error:
                failed(error)
            return True
        if self._worker is None:
            self._worker = Worker("aiodist-bulk")
            self._end = weakref.finalize(self, self._worker.end)  # where nobody closes this
        self._worker.submit(partial(self._work, job, done, failed))
        return False

    def _work(
        self, job: Callable[[], None], done: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        error: Exception | None = None
        try:
            job()
        except Exception as caught:
            error = caught
        post(self._loop, self._report, done, failed, error)

    @staticmethod
    def _report(
        done: Callable[[], None], failed: Callable[[Exception], None], error: Exception | None
    ) -> None:
        if error is not None:
            failed(error)
        done()

    def close(self) -> None:
        """End the thread once it is idle."""
        if self._worker is not None:
            self._end()
            self._worker.join()
            self._worker = None
