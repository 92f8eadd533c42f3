"""A call whose answer is wanted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aiodist.base.errors import AiodistError
from aiodist.net.tasks import settle


@dataclass(slots=True)
class PendingRequest:
    """One call. It gets a future only if it must be waited for."""

    method: str
    args: list[Any]
    deadline: float | None  # loop time, where the machine keeps a timeout for it (its last argument)
    expires: float = 0.0  # loop time, when this side stops believing in an answer
    done: bool = False
    value: Any = None
    error: AiodistError | None = None
    waiter: asyncio.Future[None] | None = None

    def settle(self, value: Any, error: AiodistError | None) -> None:
        self.done = True
        self.value = value
        self.error = error
        if self.waiter is not None:
            settle(self.waiter, None)
