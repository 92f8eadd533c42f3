"""The default group: one for each event loop, and a ContextVar that overrides it (law 10).

Several ranks can share one loop (the in-process cluster of `aiodist.testing`): each of their tasks carries
its own group in its context.
"""

from __future__ import annotations

import asyncio
import weakref
from contextvars import ContextVar

from aiodist.base.errors import UsageError
from aiodist.group.process_group import ProcessGroup

_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ProcessGroup] = weakref.WeakKeyDictionary()
override: ContextVar[ProcessGroup | None] = ContextVar("aiodist_default_group", default=None)


def find_default() -> ProcessGroup | None:
    """The running loop's default group, or None."""
    group = override.get()
    if group is not None:
        return group
    loop = asyncio._get_running_loop()
    return _by_loop.get(loop) if loop is not None else None


def set_default(group: ProcessGroup | None) -> None:
    """Make a group the running loop's default; None forgets it."""
    loop = asyncio.get_running_loop()
    if group is None:
        _by_loop.pop(loop, None)
    else:
        _by_loop[loop] = group


def replace_default(old: ProcessGroup, new: ProcessGroup) -> None:
    """Let a group take the place of another, where that one is the default."""
    if override.get() is old:
        override.set(new)
    elif find_default() is old:
        set_default(new)


def default_group() -> ProcessGroup:
    """The running loop's default group; `UsageError` where there is none."""
    group = find_default()
    if group is None:
        if asyncio._get_running_loop() is None:
            raise UsageError(
                "no event loop is running here",
                hint="Call aiodist inside `async def main()` under dist.run(main()), or use aiodist.portal",
            )
        raise UsageError(
            "the default process group does not exist on this loop",
            hint="Write `await dist.init_process_group()` first",
        )
    return group
