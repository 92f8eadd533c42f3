"""Group commit: the changes of many requests become one sync of the log, off the loop, before any answer.

While one commit is being synced the next gathers what happens meanwhile. A log that has grown too large is
replaced on the way: the loop takes the state of that moment (values are shared, not copied), a thread writes
it as a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from aiodist.rendezvous.durable.disk import StoreFiles
from aiodist.rendezvous.machine import Change

LOG_BYTES = 16 << 20  # a log may grow to this, or to twice the snapshot


class Committer:
    """The committer, which makes changes durable, in order.

    Args:
        files: where; the committer owns them.
        pool: threads that it may keep busy, two at most.
        dump: what is true now, as changes; called by the loop.
    """

    def __init__(self, files: StoreFiles, pool: Executor, dump: Callable[[], list[Change]]) -> None:
        self.submitted = 0  # positions, counted in calls of `submit`
        self.saved = 0
        self.backlog = 0  # bytes, about, that were submitted and have not lasted yet
        self.failed: Exception | None = None
        self._files = files
        self._pool = pool
        self._dump = dump
        self._on_saved: Callable[[int], None]
        self._on_failed: Callable[[Exception], None]
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Change] = []
        self._weight = 0
        self._task: asyncio.Task[None] | None = None
        self._snapshot: asyncio.Future[None] | None = None

    def begin(self, on_saved: Callable[[int], None], on_failed: Callable[[Exception], None]) -> None:
        """Say how it goes from now on; before anything is submitted.

        Args:
            on_saved: called with a position: what was submitted up to there has lasted.
            on_failed: called once; nothing that was submitted after the last `on_saved` may be answered.
        """
        self._on_saved, self._on_failed = on_saved, on_failed

    def submit(self, changes: list[Change], weight: int) -> None:
        """Take changes; `on_saved` follows, or `on_failed` does."""
        self.submitted += 1
        self._gathered += changes
        self._weight += weight
        self.backlog += weight
        if (self._task is None or self._task.done()) and self.failed is None:
            self._task = self._loop.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._gathered and self.failed is None:
                changes, self._gathered = self._gathered, []
                weight, self._weight = self._weight, 0
                position = self.submitted
                files = self._files
                if self._is_too_large() and self._snapshot is None:
                    state = self._dump()  # `changes` are in it
                    number = await self._loop.run_in_executor(self._pool, self._commit_and_turn, changes)
                    self._snapshot = self._loop.run_in_executor(self._pool, files.snapshot, number, state)
                    self._snapshot.add_done_callback(self._snapshot_done)
                    del state
                else:
                    await self._loop.run_in_executor(self._pool, files.commit, changes)
                self.saved = position
                self.backlog -= weight
                if self.failed is None:
                    self._on_saved(position)
        except Exception as error:  # whatever it is: the disk may not hold what was asked for
            self._fail(error)

    def _is_too_large(self) -> bool:
        return self._files.log_bytes > max(LOG_BYTES, 2 * self._files.snapshot_bytes)

    def _commit_and_turn(self, changes: list[Change]) -> int:
        self._files.commit(changes)
        return self._files.next_log()

    def _snapshot_done(self, done: asyncio.Future[None]) -> None:
        self._snapshot = None
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Exception):
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.failed is None:
            self.failed = error
            self._on_failed(error)

    async def aclose(self) -> None:
        """Return when all that was submitted has lasted, or cannot, and the files are closed."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        while self._snapshot is not None:
            await asyncio.wait([self._snapshot])
        self._files.close()
