"""Steps of training objects whose callers were interrupted: they go on, and others wait for their end."""

from __future__ import annotations

import asyncio
import threading

from aiodist.group import ProcessGroup
from aiodist.portal.loop_thread import Reply


class Steps:
    """The steps of one portal that go on without their callers. They use the callers' arrays, and call
    collectives of a group."""

    def __init__(self) -> None:
        self._going_on: dict[Reply, ProcessGroup] = {}

    def add(self, reply: Reply, group: ProcessGroup) -> None:
        """Note that the caller of a step was interrupted.

        Args:
            reply: the one that it had waited for.
            group: whose collectives the step calls.
        """
        self._going_on[reply] = group

    def must_wait(self, group: ProcessGroup | None) -> bool:
        """Whether the calling thread has to wait for steps.

        Args:
            group: before it calls a collective of this group. Only the thread that signals interrupt has to;
                another one may be a part of a step, an optimizer's update. None: because it wants all to end.
        """
        return bool(self._going_on) and (
            group is None or threading.current_thread() is threading.main_thread()
        )

    def let_go(self, reply: Reply) -> None:
        """Forget a step, if it is one, when its task has ended. In the loop's thread."""
        if reply.task is None:  # it was never asked for, or is over
            self._going_on.pop(reply, None)
        elif reply in self._going_on:
            reply.task.add_done_callback(lambda _: self._going_on.pop(reply, None))

    async def end(self, group: ProcessGroup | None = None) -> None:
        """Wait until the steps of a group, in any epoch, or all have ended. Their errors are not told."""
        steps = {
            reply: reply.task
            for reply, its in list(self._going_on.items())
            if group is None or its._core.lineage is group._core.lineage
        }
        if tasks := [task for task in steps.values() if task is not None]:
            await asyncio.wait(tasks)
        for reply in steps:
            self._going_on.pop(reply, None)
