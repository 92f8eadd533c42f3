"""What synchronous code takes one by one: messages, parts of streams. And whence a task takes something."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from types import CodeType
from typing import Any, Generic, Self, TypeVar

from aiodist.backends.work import Work
from aiodist.group.calls import Messages
from aiodist.group.services.stream import Stream
from aiodist.portal.loop_thread import Source

T = TypeVar("T")

SOURCES: dict[CodeType, Callable[[Any], Source]] = {
    one.__anext__.__code__: lambda itself: itself for one in (Messages, Stream)
}
"""By the code of a method that takes something: the source of its object, to which that can be given back."""


def source_of(awaitable: Awaitable[Any]) -> Source | None:
    """The source from which an awaitable takes something; None: from nothing."""
    if not inspect.iscoroutine(awaitable):
        return None
    find = SOURCES.get(awaitable.cr_code)
    return None if find is None else find(inspect.getcoroutinelocals(awaitable)["self"])


class TakingRequest:
    """A function that gives the outcome of a Work that is done, on the loop, which may take a receive back.

    Args:
        work: of a block that has not ended.
    """

    __slots__ = ("_take_back", "_work")

    def __init__(self, work: Work[Any]) -> None:
        self._work = work
        self._take_back: Any = None

    def __call__(self) -> Any:
        work = self._work
        if work.done():
            self._take_back = work._take_back
            work._is_asked()
        return work.result()

    def take_back(self) -> None:
        """Note that the caller was interrupted, and has no outcome."""
        if self._take_back is not None:
            self._work._goes_on_to_be_awaited(self._take_back)
            self._work._let_be_dropped(False)


class SyncIterator(Generic[T]):
    """A mailbox, or a stream, for synchronous code: iterate over it, or call `next`; each blocks.

        with pg.stream(1, "parts") as parts:  # leaving it has the handler stopped
            for part in parts:
                ...

    Ctrl-C loses nothing: what the interrupted call would have taken is the next one's. On the portal's loop
    it is an async iterator.

    Args:
        iterator: on the portal's loop.
        call: the portal's.
    """

    def __init__(self, iterator: AsyncIterator[T], call: Callable[..., Any]) -> None:
        self._iterator = iterator
        self._call = call

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            taken: T = self._call(anext, self._iterator)
            return taken  # no call between: an interrupt there would lose it
        except StopAsyncIteration:
            raise StopIteration from None

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[T]:
        return self._iterator.__anext__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def close(self) -> None:
        """Take no more, and have a stream's handler stopped. May be repeated."""
        if isinstance(self._iterator, Stream):
            self._call(self._iterator.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
