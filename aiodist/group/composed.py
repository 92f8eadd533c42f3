"""Operations that are made of several: one Work for the user, whose steps a task carries out.

All numbers are taken in the call (law 1). What a step needs of the one before it is known only when that has
ended, so later steps are submitted by the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aiodist.backends.work import Work


class Steps:
    """The tasks that carry out composed operations of one group.

    Args:
        loop: the group's.
        dropped: called with the Work of a task that was cancelled: nobody submits its later steps.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, dropped: Callable[[Work[Any]], None]) -> None:
        self._loop = loop
        self._dropped = dropped
        self._tasks: set[asyncio.Task[None]] = set()

    def carry_out(self, work: Work[Any], steps: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Have a task carry out the steps of a Work; what they return is its result."""

        async def run() -> None:
            try:
                work._finish(await steps())
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                work._fail(error)

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, work))

    def _ended(self, work: Work[Any], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._dropped(work)

    def pending(self) -> set[asyncio.Task[None]]:
        """The tasks that have not ended."""
        return set(self._tasks)
