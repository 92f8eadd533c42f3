"""Where programs run that are not processes of their own: a simulation's ranks.

What starts them sets `current` in their context. Then `run` takes the loop that is made there, and
`init_process_group` asks there for the world's group. Nothing is global: other contexts do not see it.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Protocol

from aiodist.base.errors import UsageError
from aiodist.group import ProcessGroup


class Elsewhere(Protocol):
    """The place of one rank."""

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop for the rank's program."""

    async def form(self, name: str, timeout: float | None) -> ProcessGroup:
        """The world's group of the rank, on the running loop.

        Args:
            name: for people; '' for 'world'.
            timeout: seconds, the default of its operations; None: the usual.
        """


current: ContextVar[Elsewhere | None] = ContextVar("aiodist_elsewhere", default=None)


def refuse_elsewhere(what: str, hint: str) -> None:
    """Refuse what such a program cannot have.

    Args:
        what: it is; hint: what to do instead.

    Raises:
        UsageError: this is one.
    """
    if current.get() is not None:
        raise UsageError(f"{what} cannot be simulated", hint=hint)
