"""From a thread to the loop: calls, and the ends of futures. A closed loop is told nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def post(loop: Any, callback: Callable[..., object], *arguments: Any) -> None:
    """Call on a loop, from any thread; nothing where the loop is closed: nobody waits any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


def settle(future: asyncio.Future[T], result: T, error: Exception | None = None) -> None:
    """End a future by its result, or by an error; nothing where nobody waits for it any more. On the loop."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def fulfil(future: asyncio.Future[T], job: Callable[[], T]) -> None:
    """Run a job in this thread; a future has its result, or what it raised."""
    try:
        result = job()
    except Exception as error:
        post(future.get_loop(), settle, future, None, error)
    else:
        post(future.get_loop(), settle, future, result)
