"""Waiting for so many seconds at most, and what is said when they are over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable


@contextlib.asynccontextmanager
async def within(seconds: float, late: Callable[[], Exception]) -> AsyncIterator[None]:
    """Cancel what is inside when its time is over, and raise an error in the place of that.

    A `TimeoutError` of what is inside, such as the network's, passes.

    Args:
        seconds: for what is inside.
        late: makes the error.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise late() from None


async def happens(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, for so many seconds at most → whether it has come. None: as long as it takes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
