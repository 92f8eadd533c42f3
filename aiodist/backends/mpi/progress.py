"""The one thread that calls MPI: it posts what it is given, and looks at what is open until it ends.

    put ─▶ orders ─▶ post ─▶ open requests ─▶ test ─▶ done
                                 │  ▲
                                 └──┘  a pause, longer the longer nothing moves; a new order ends it

MPI knows nothing to wait on that a loop could, and makes progress only inside its calls. So a thread asks.
One for all groups: then a library need not let several threads in at a time.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiodist.backends.mpi.backoff import LONGEST, YIELD, PollPauses

logger = logging.getLogger("aiodist")

GRACE = 0.25
"""Seconds for what is open to end by itself when its group is aborted: what all members have begun does."""

Call = Callable[[], None]


@dataclass(slots=True, eq=False)
class Posted:
    """One request of MPI.

    Attributes:
        request: mpi4py's, which keeps its memory alive.
        datatype: for a receive: of its elements.
        count: … and how many must come.
        job: what it is a part of.
    """

    request: Any
    datatype: Any = None
    count: int = 0
    job: MpiJob = field(init=False, repr=False)


@dataclass(slots=True, eq=False)
class MpiJob:
    """One operation, of one or several requests.

    Attributes:
        owner: whose it is, for `abandon`.
        post: begins it: posts a request and yields it, and the next.
        done: called in this thread when all have ended.
        failed: called instead, once, with what MPI said.
        left: requests that are open.
        posting: there may be more.
        broken: `failed` was called.
    """

    owner: object
    post: Callable[[], Iterator[Posted]]
    done: Call
    failed: Callable[[Exception], None]
    left: int = 0
    posting: bool = True
    broken: bool = False


Test = Callable[[list[Any], Sequence[Posted]], list[tuple[int, Exception | None]]]
"""A look at requests (a list of them, and what is known about each, in the same order) → those that have
ended, by index, each with its error or None."""


class MpiProgress:
    """The progress of one process's calls; see the module. Any thread may call what is public, but `run`.

    Args:
        test: asks MPI.
        clock: seconds; replaced in tests, as is `offer`.
        offer: offers the core to others that wait for one.
    """

    def __init__(self, test: Test, clock: Callable[[], float] = time.monotonic, offer: Call = os.sched_yield):
        self._test = test
        self._clock = clock
        self._offer = offer
        self._backoff = PollPauses()
        self._orders: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._requests: list[Any] = []
        self._posted: list[Posted] = []
        self._abandoned: dict[object, Call | None] = {}

    # ── from any thread ──────────────────────────────────────────────────────────────────────────────

    def post(self, job: MpiJob) -> None:
        """Begin a job, after those that were given before."""
        self._orders.put(partial(self._begin, job))

    def call(self, function: Call) -> None:
        """Have something else done in this thread, in its turn."""
        self._orders.put(function)

    def abandon(self, owner: object, released: Call) -> None:
        """Begin nothing more of an owner, and take back what can be: receives that nothing came for.

        Args:
            released: called in this thread when none of its requests is open any more: perhaps never.
        """
        self._orders.put(partial(self._abandon, owner, released))

    def end(self) -> None:
        """Let the thread end, after what was given before."""
        self._orders.put(None)

    # ── in the thread ────────────────────────────────────────────────────────────────────────────────

    def run(self) -> list[Posted]:
        """Work until the end, and a moment longer for what is open.

        Returns:
            what is still open then.
        """
        while not self._obey():
            if self._requests:
                self._poll()
        until = self._clock() + GRACE
        while self._requests and self._clock() < until:
            self._poll()
            time.sleep(LONGEST)
        return self._posted

    def _obey(self) -> bool:
        """Do all that is ordered; pause for more where nothing moved. True: the end."""
        wait = True
        while True:
            try:
                order = self._next() if wait else self._orders.get_nowait()
            except queue.Empty:
                return False
            if order is None:
                return True
            wait = False
            self._backoff.moved()
            try:
                order()
            except Exception:
                logger.exception("MPI: what was to be done in the thread of its calls failed")

    def _next(self) -> Call | None:
        """The next order. `queue.Empty` when the pause is over without one."""
        if not self._requests:
            return self._orders.get()
        pause = self._backoff.pause(self._clock())
        if pause > 0:
            return self._orders.get(timeout=pause)
        if pause == YIELD:
            self._offer()
        return self._orders.get_nowait()

    def _poll(self) -> None:
        ended = self._test(self._requests, self._posted)
        if not ended:
            return
        self._backoff.moved()
        gone = {index for index, _ in ended}
        over = [(self._posted[index], error) for index, error in ended]
        self._requests = [request for index, request in enumerate(self._requests) if index not in gone]
        self._posted = [posted for index, posted in enumerate(self._posted) if index not in gone]
        for posted, error in over:
            job = posted.job
            job.left -= 1
            if error is not None:
                self._fail(job, error)
            self._finish(job)
        self._tell_abandoned()

    def _begin(self, job: MpiJob) -> None:
        if job.owner in self._abandoned:
            return
        try:
            for posted in job.post():
                posted.job = job
                job.left += 1
                self._requests.append(posted.request)
                self._posted.append(posted)
        except Exception as error:
            self._fail(job, error)
        job.posting = False
        self._finish(job)

    def _finish(self, job: MpiJob) -> None:
        if not job.left and not job.posting and not job.broken:
            job.done()

    def _fail(self, job: MpiJob, error: Exception) -> None:
        if not job.broken:
            job.broken = True
            job.failed(error)

    def _abandon(self, owner: object, released: Call) -> None:
        self._abandoned[owner] = released
        for posted in self._posted:
            if posted.job.owner is owner and posted.datatype is not None:
                posted.request.Cancel()
        self._tell_abandoned()

    def _tell_abandoned(self) -> None:
        if not any(self._abandoned.values()):
            return
        loud = {posted.job.owner for posted in self._posted}
        for owner, released in self._abandoned.items():
            if released is not None and owner not in loud:
                self._abandoned[owner] = None
                released()
