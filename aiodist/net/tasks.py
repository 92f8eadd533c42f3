"""Tasks that end before those who started them, and the ends of futures."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks(set[asyncio.Task[Any]]):
    """Tasks that go on beside the rest, kept until they have ended."""

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin one."""
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task


async def cancel(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and wait until they have ended, whatever they raise. None is nothing to cancel."""
    given = [task for task in tasks if task is not None]
    for task in given:
        task.cancel()
    await asyncio.gather(*given, return_exceptions=True)


def settle(future: asyncio.Future[T], result: T, error: Exception | None = None) -> None:
    """End a future by its result, or by an error; nothing where nobody waits for it any more. On the loop."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
