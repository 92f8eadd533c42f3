"""A call whose answer is wanted."""

from __future__ import annotations

import asyncio
from typing import Any

from aiodist.errors import AiodistError


class Pending:
    """One call. It gets a future only if it must be waited for."""

    __slots__ = ("args", "deadline", "done", "error", "expires", "method", "value", "waiter")

    def __init__(self, method: str, args: list[Any], deadline: float | None) -> None:
        self.method = method
        self.args = args
        self.deadline = deadline  # loop time, where the machine keeps a timeout for it (its last argument)
        self.expires = 0.0  # loop time, when this side stops believing in an answer
        self.done = False
        self.value: Any = None
        self.error: AiodistError | None = None
        self.waiter: asyncio.Future[None] | None = None

    def settle(self, value: Any, error: AiodistError | None) -> None:
        self.done = True
        self.value = value
        self.error = error
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
