"""Operations that are made of several: one Work for the user, whose steps a task carries out.

All numbers are taken in the call (law 1). What a step needs of the one before it is known only when that has
ended, so later steps are submitted by the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aiodist.errors import GroupAborted
from aiodist.group.core import GroupCore
from aiodist.work import Work


class Composed(GroupCore):
    """See the module."""

    def _reserve(self) -> int:
        """Take a collective's number now, to issue it later."""
        number = self._issued
        self._issued += 1
        if self._error is None:
            self._unbegun.add(number)
            self._backend.reserve(number)
        return number

    def _composed(
        self, first: Work[Any], rest: Callable[[], Coroutine[Any, Any, Any]], async_op: bool
    ) -> Work[Any]:
        """The Work of an operation that is made of several.

        Args:
            first: the first of them; where it is held back, so is the whole.
            rest: waits for it, carries out the others, and gives the result.
            async_op: the user's.
        """
        work: Work[Any] = Work(self, first.call, self._loop, self._pulse, async_op, self._failures)
        self._batches.follow(first, work, partial(self._carry_out, work, rest))
        return work

    def _carry_out(self, work: Work[Any], steps: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Have a task carry out the steps of a Work. Closing the group waits for it."""

        async def run() -> None:
            try:
                work._finish(await steps())
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                work._fail(error)

        task = self._loop.create_task(run())
        self._composed_tasks.add(task)
        task.add_done_callback(partial(self._composed_ended, work))

    def _composed_ended(self, work: Work[Any], task: asyncio.Task[None]) -> None:
        self._composed_tasks.discard(task)
        if task.cancelled():  # the others wait for the steps that nobody submits now
            error = GroupAborted(
                self.ranks[self.rank], f"its task for an {work.op} was cancelled: all tasks of its loop were"
            )
            self._break(error)
            work._fail(error)
