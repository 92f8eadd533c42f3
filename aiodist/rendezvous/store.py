"""The store's interface: small values under names, that processes meet by.

torch's names and meanings, awaitable. Values are bytes (a str is encoded as UTF-8); keys are str. Every
call that waits has a timeout, the store's own by default, and says what it waited for when it runs out.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from aiodist.errors import RendezvousError, UsageError
from aiodist.timeouts import Timeout, seconds

DEFAULT_TIMEOUT = 300.0
MAX_KEY = 4096

Value = bytes | bytearray | memoryview | str


class WatchEvent(NamedTuple):
    """One change under a watched prefix; `value` is None where the key was deleted or its lease ran out."""

    key: str
    value: bytes | None


class Store(ABC):
    """What every store can do.

    Args:
        timeout: seconds that a call may take where it says nothing itself.

    Raises (every method):
        UsageError: a key, value or number without meaning.
        RendezvousTimeout: it took too long; names the keys or ranks that were missing.
        RendezvousError: the store is closed or lost.
    """

    def __init__(self, timeout: Timeout = None) -> None:
        self.timeout = DEFAULT_TIMEOUT if timeout is None else seconds(timeout)

    @abstractmethod
    async def set(self, key: str, value: Value, *, ttl: float | None = None) -> None:
        """Set a key.

        Args:
            ttl: makes it a lease: the key goes away after so many seconds unless set again; sooner where
                this client's connection ends without goodbye and is not replaced within two seconds.
        """

    @abstractmethod
    async def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Set several keys at once; nobody sees only some of them."""

    @abstractmethod
    async def multi_get(self, keys: Sequence[str], timeout: Timeout = None) -> list[bytes]:
        """The values of several keys, in their order, as soon as all exist."""

    @abstractmethod
    async def wait(self, keys: Sequence[str], timeout: Timeout = None) -> None:
        """Return as soon as all keys exist."""

    @abstractmethod
    async def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist now."""

    @abstractmethod
    async def add(self, key: str, amount: int) -> int:
        """Add to the decimal number that a key holds (0 where it is absent) → the sum; exactly once."""

    @abstractmethod
    async def append(self, key: str, value: Value) -> None:
        """Append to what a key holds (nothing where it is absent); exactly once."""

    @abstractmethod
    async def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Set a key if it holds what is expected → what it holds now.

        As in torch: an absent key matches an empty `expected`; where `expected` is not empty, an absent
        key stays absent and `expected` is returned.
        """

    @abstractmethod
    async def delete_key(self, key: str) -> bool:
        """Delete a key → whether it was there."""

    @abstractmethod
    async def list_keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, sorted."""

    @abstractmethod
    async def num_keys(self, prefix: str = "") -> int:
        """How many keys begin with `prefix`."""

    @abstractmethod
    async def gather(
        self, name: str, world_size: int, rank: int, value: Value, timeout: Timeout = None
    ) -> list[bytes]:
        """Leave a value and get those of all ranks, in rank order, as soon as all have come; one round trip.

        The name may be used again for the next round.

        Raises:
            RendezvousTimeout: `missing` holds the ranks that had not come.
            RendezvousError: two came as one rank, or they count different worlds.
        """

    async def barrier(self, name: str, world_size: int, rank: int, timeout: Timeout = None) -> None:
        """Return as soon as all ranks have come; errors as in `gather`. The name may be used again."""
        await self.gather(name, world_size, rank, b"", timeout)

    async def get(self, key: str, timeout: Timeout = None) -> bytes:
        """The value of a key, as soon as it exists."""
        [value] = await self.multi_get([key], timeout)
        return value

    @abstractmethod
    def watch(self, prefix: str = "") -> Watch:
        """All keys that begin with `prefix` as they are now, then every change: an async iterator.

        After a broken connection, changes that overtook each other may be reported as one; the last
        state of every key always is.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of the store; what waits fails with `RendezvousError`. May be called again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Watch:
    """The async iterator that `Store.watch` returns. Close it (`aclose`, `async with`) when done early.

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
        self._wants_all = True

    def under(self, prefix: str) -> Watch:
        """The same watch, reporting keys without `prefix`."""
        self._cut += len(prefix)
        return self

    def restart(self) -> None:
        """The next news are all that exists: the store was asked afresh."""
        self._wants_all = True

    def feed(self, news: Sequence[Sequence[Any]]) -> None:
        """News of the store: [key, value or None, revision] each."""
        if self._wants_all:
            self._wants_all = False
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
        self._wake()

    def end(self, error: Exception | None) -> None:
        """Nothing more will come; the reader sees what is left, then the error, or the end."""
        self._error = error
        self._on_close = None
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def check_key(key: str) -> str:
    """A key as it is, or `UsageError`."""
    if not isinstance(key, str):
        raise UsageError(f"a store's keys are str, got {type(key).__name__}")
    if len(key) > MAX_KEY:
        raise UsageError(f"a store's keys have at most {MAX_KEY} characters, this one {len(key)}")
    return key


def check_keys(keys: Sequence[str]) -> list[str]:
    """Several keys as a list, or `UsageError`; one str is not several keys."""
    if isinstance(keys, str):
        raise UsageError(f"expected a list of keys, got the str '{keys[:40]}'", hint=f"Write ['{keys[:40]}']")
    return [check_key(key) for key in keys]


def check_value(value: Value) -> bytes:
    """A value as bytes, or `UsageError`."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise UsageError(f"a store's values are bytes or str, got {type(value).__name__}")


def closed_error() -> RendezvousError:
    """What a closed store says to whoever still uses it."""
    return RendezvousError("the store is closed", hint="Close it after its last use")
