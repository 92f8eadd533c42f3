"""Watches, as their readers see them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from aiodist.base.errors import UsageError
from aiodist.net.tasks import settle

MANY = 4096
"""Changes that wait for a watch's reader, until those of one key become one."""


class WatchEvent(NamedTuple):
    """One change under a watched prefix; `value` is None where the key was deleted or its lease ran out."""

    key: str
    value: bytes | None


class Watch:
    """The async iterator that `Store.watch` returns. Close it (`aclose`, `async with`) when done early.

    What its reader has not read yet is kept here. Where that grows beyond `MANY` changes, those of one key
    become one: so it never takes more than the store itself does.

    Args:
        on_close: called once when the reader closes it.
    """

    def __init__(self, on_close: Callable[[], None]) -> None:
        self._on_close: Callable[[], None] | None = on_close
        self._events: deque[WatchEvent] = deque()
        self._revisions: dict[str, int] = {}
        self._error: Exception | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._cut = 0
        self._many = MANY
        self._shown: set[str] = set()  # keys that the reader believes to exist
        self._state: list[Any] | None = []  # pieces of all that exists, until it is complete

    def under(self, prefix: str) -> Watch:
        """The watch, reporting keys without `prefix`."""
        self._cut += len(prefix)
        return self

    def restart(self) -> None:
        """Take the next news for all that exists: the store was asked afresh."""
        self._state = []

    def feed(self, news: Sequence[Any]) -> None:
        """Take news of the store: [key, value or None, revision] each; None ends a piece that is not all."""
        if self._state is not None:
            self._state += news
            if self._state and self._state[-1] is None:
                self._state.pop()
                return
            news, self._state = self._state, None
            for gone in self._revisions.keys() - {key for key, _, _ in news}:
                del self._revisions[gone]
                self._events.append(WatchEvent(gone, None))
        for key, value, revision in news:
            if value is None:
                self._revisions.pop(key, None)
            elif self._revisions.get(key) == revision:
                continue
            else:
                self._revisions[key] = revision
            self._events.append(WatchEvent(key, value))
        if len(self._events) > self._many:
            self._join()
        self._wake()

    def _join(self) -> None:
        """Join the changes of each key: only the last matters, and none of a key that came and went."""
        last: dict[str, WatchEvent] = {}
        for event in self._events:
            last.pop(event.key, None)  # each in the place of its last change
            last[event.key] = event
        self._events = deque(
            event for event in last.values() if event.value is not None or event.key in self._shown
        )
        self._many = max(MANY, 2 * len(self._events))

    def end(self, error: Exception | None) -> None:
        """End it; the reader sees what is left, then the error, or the end."""
        self._error = error
        self._on_close = None
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None:
            settle(self._wakeup, None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._on_close is None:
                raise StopAsyncIteration
            if self._wakeup is not None:
                raise UsageError("this watch is being read by another task already")
            self._wakeup = asyncio.get_running_loop().create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None
        key, value = self._events.popleft()
        if value is None:
            self._shown.discard(key)
        else:
            self._shown.add(key)
        return WatchEvent(key[self._cut :], value)

    async def aclose(self) -> None:
        """Stop watching; the iteration ends."""
        on_close = self._on_close
        self.end(None)
        self._events.clear()
        if on_close is not None:
            on_close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
