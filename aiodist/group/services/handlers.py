"""The table of what other ranks may call by name. Handlers belong to the process, not to an epoch."""

from __future__ import annotations

import asyncio
import inspect
import math
import weakref
from collections import deque
from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any

from aiodist.base.errors import UsageError, shown
from aiodist.group.services import records
from aiodist.group.services.fields import HandlerFields, SlotsFields
from aiodist.group.services.notes import Notes
from aiodist.net.wire.calls import MAX_NAME

GRACE = 1.0
"""Seconds that a call waits for its handler to be registered: processes do not begin in the same instant.
They count from the latest registration, so a wrong name fails at once where no others are registered."""

LIMIT = 256
"""Calls of one handler that run at once in a process, where its registration says nothing else."""


class Handler(HandlerFields):
    """A function that other ranks may call.

    Args:
        name: by which.
        function: plain, async, or an async generator function.
        limit: calls of it that run at once; the next ones wait.

    Attributes:
        streams: it is an async generator function.
        quick: it is a plain function, which runs within a turn of the loop.
        slots: taken by each call that runs.
        least, most: numbers of positional arguments.
        builders: of those that are dataclasses; see `records.parameters`.
    """

    def __init__(self, name: str, function: Callable[..., Any], limit: int) -> None:
        self.name = name
        self.function = function
        called = function
        while isinstance(called, partial):
            called = called.func
        if not inspect.isroutine(called):
            called = type(called).__call__
        self.streams = inspect.isasyncgenfunction(called)
        self.quick = not (self.streams or inspect.iscoroutinefunction(called))
        self.slots = Slots(limit)
        self.least, self.most = _counts(function)
        self.builders = records.parameters(function)

    def misfit(self, args: Any) -> str:
        """Why these arguments do not fit the function's parameters; '' where they do. Builds records."""
        if type(args) is not list:
            return "its arguments cannot be read"
        if not self.least <= len(args) <= self.most:
            takes = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most:g}"
            return f"{self.name} takes {takes} argument{'' if takes == '1' else 's'}, not {len(args)}"
        for places, build in self.builders:
            for place in range(*places.indices(len(args))):
                try:
                    args[place] = build(args[place])
                except records.Misfit as error:
                    return f"argument {place + 1} of {self.name}: {error}"
        return ""


class Slots(SlotsFields):
    """Places for calls that run at once. Who waits for one has it in the order of asking.

    Args:
        count: of them.

    Attributes:
        free: how many nobody has.
        line: the calls that wait for one, in order.
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self.line: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take one now; False where none is free."""
        if not self.free:
            return False
        self.free -= 1
        return True

    async def wait(self) -> None:
        """Take one when there is one."""
        if self.take():
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.line.append(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self.give()
            raise

    def give(self) -> None:
        """Give one back: to the first who waits."""
        while self.line:
            waiting = self.line.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self.free += 1


class Handlers:
    """The handlers of one process.

    Attributes:
        by_name: of each name.
        names: of each function, its latest.
        notes: what is logged of them.
    """

    def __init__(self) -> None:
        self.notes = Notes(asyncio.get_running_loop())
        self.by_name: dict[str, Handler] = {}
        self.names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._latest = 0.0  # time of the latest registration
        self._awaited: dict[str, list[asyncio.Future[None]]] = {}

    def register(self, function: Any, name: str | None, limit: int | None) -> None:
        """Enter a function, in place of one of that name.

        Raises:
            UsageError: it cannot be called by other ranks.
        """
        if not callable(function):
            raise UsageError(f"a handler is a function, got {shown(function)}")
        name = name_of(function) if name is None else checked(name)
        if limit is not None and (type(limit) is not int or limit < 1):
            raise UsageError(f"limit must be at least 1, got {shown(limit)}")
        self._latest = asyncio.get_running_loop().time()
        self.by_name[name] = Handler(name, function, limit or LIMIT)
        if inspect.isfunction(function):
            self.names[function] = name
        for waiting in self._awaited.pop(name, ()):
            if not waiting.done():
                waiting.set_result(None)

    def name(self, function: Any) -> str:
        """The name of a function: under which it is registered here, or its own."""
        registered = self.names.get(function) if inspect.isfunction(function) else None
        return registered or name_of(function)

    def unknown(self, name: str) -> str:
        """The text on a name that has no handler."""
        near = get_close_matches(name, self.by_name, 1)
        known = ", ".join(sorted(self.by_name)[:10])
        meant = f"did you mean {near[0]!r}?" if near else ""
        return f"it has no handler {name!r}; {meant or (f'it has {known}' if known else 'it has none')}"

    def patience(self) -> float:
        """Seconds to wait for a handler: until `GRACE` after the latest registration, or from now."""
        if not self.by_name:
            return GRACE
        return self._latest + GRACE - asyncio.get_running_loop().time()

    async def wait_for(self, name: str) -> Handler | None:
        """The handler of a name, which may be about to be registered; None where none will be, it seems."""
        patience = self.patience()
        if name not in self.by_name and patience > 0:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaited.setdefault(name, []).append(waiting)
            try:
                await asyncio.wait([waiting], timeout=patience)
            finally:
                left = self._awaited.get(name, [])
                if waiting in left:
                    left.remove(waiting)
                    if not left:
                        del self._awaited[name]
        return self.by_name.get(name)


def name_of(function: Any) -> str:
    """The name under which a function is registered where no other is given."""
    name = getattr(function, "__name__", "")
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"{shown(function)} has no name of its own", hint="Give name=, and call it by that")
    return checked(name)


def checked(name: Any) -> str:
    """A name of a handler."""
    if not isinstance(name, str) or not name or not name.isprintable() or len(name.encode()) > MAX_NAME:
        raise UsageError(f"a handler's name is a text of 1 to {MAX_NAME} bytes, got {shown(name)}")
    return name


known = lru_cache(maxsize=256)(checked)
"""`checked`, for names that come again and again."""


def _counts(function: Callable[..., Any]) -> tuple[int, float]:
    """The least and the greatest number of positional arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0, math.inf
    least, most = 0, 0.0
    for one in parameters:
        if one.kind is one.VAR_POSITIONAL:
            most = math.inf
        elif one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
            most += 1
            least += one.default is one.empty
        elif one.kind is one.KEYWORD_ONLY and one.default is one.empty:
            raise UsageError(
                f"the handler needs the keyword argument {one.name}, and calls have none",
                hint="Give it a default, or make it positional",
            )
    return least, most
