"""Steps that belong together: they run to their end, though the task that awaits them is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiodist.base.errors import UsageError, shown

T = TypeVar("T")


async def together(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where the awaiting task is cancelled: that is cancelled afterwards.

    What the steps raise after the cancellation is its cause.
    """
    if not asyncio.iscoroutine(steps):
        raise UsageError(
            f"together() takes a coroutine, got {shown(steps)}",
            hint="Call the async function: pg.together(f())",
        )
    task = asyncio.get_running_loop().create_task(steps)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failed := task.exception()) is not None:
        raise cancelled from failed
    raise cancelled
