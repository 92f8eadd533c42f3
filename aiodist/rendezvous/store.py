"""The store's interface: small values under names, that processes meet by.

torch's names and meanings, awaitable. Values are bytes (a str is encoded as UTF-8); keys are str. Every
call that waits has a timeout, the store's own by default, and says what it waited for when it runs out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from aiodist.errors import RendezvousError, UsageError
from aiodist.rendezvous.lease import Lease
from aiodist.rendezvous.schema import MAX_KEY
from aiodist.rendezvous.watch import Watch, WatchEvent
from aiodist.timeouts import Timeout, seconds

__all__ = [
    "DEFAULT_TIMEOUT",
    "MAX_KEY",
    "Lease",
    "Store",
    "Value",
    "Watch",
    "WatchEvent",
    "check_key",
    "check_keys",
    "check_value",
    "closed_error",
]

DEFAULT_TIMEOUT = 300.0

Value = bytes | bytearray | memoryview | str


class Store(ABC):
    """What every store can do. A key is at most 4 KiB long, a value nearly 8 MiB.

    Args:
        timeout: seconds that a call may take where it says nothing itself.

    Raises (every method):
        UsageError: a key, value or number without meaning.
        RendezvousTimeout: it took too long; names the keys or ranks that were missing.
        StoreFull: it holds as much as it may.
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

    async def claim(self, key: str, value: Value) -> bytes:
        """Set a key for as long as this process is a client, unless it holds something → what it holds now.

        The key goes two seconds after the connection has ended without goodbye, where it is not replaced; a
        goodbye leaves it. A key that holds nothing is free. (A store without connections keeps it.)
        """
        return await self.compare_set(key, b"", value)

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
            RendezvousTimeout: `missing` holds the ranks that had not come, of very many the first 256.
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

    def lease(self, ttl: float) -> Lease:
        """Keys that live as long as this process holds on to them.

            async with store.lease(10) as lease:
                await lease.set("workers/3", address)

        Args:
            ttl: seconds without renewal after which it ends, and its keys with it. It is renewed by itself,
                three times as often; a store that was started again grants everybody one ttl anew. Where
                this client's connection ends without goodbye and is not replaced within two seconds, it ends
                then.
        """
        return Lease(self, ttl)

    async def fence(self) -> int:
        """A fencing token: a number larger than all that this store has given before, to leases too.

        Write it beside what you write elsewhere, and have that place refuse smaller ones: then who was
        replaced while it slept can do no harm.
        """
        raise UsageError(f"{type(self).__name__} gives no fencing tokens", hint="Use a TcpStore")

    # What `Lease` is made of.

    async def _begin_lease(self, ttl: float) -> int:
        raise UsageError(f"{type(self).__name__} has no leases of many keys", hint="Use set(…, ttl=…)")

    async def _keep_lease(self, token: int) -> bool:
        raise UsageError(f"{type(self).__name__} has no leases of many keys", hint="Use set(…, ttl=…)")

    async def _put_leased(self, token: int, key: str, value: Value) -> None:
        raise UsageError(f"{type(self).__name__} has no leases of many keys", hint="Use set(…, ttl=…)")

    async def _claim_leased(self, token: int, key: str, value: Value) -> bytes:
        raise UsageError(f"{type(self).__name__} has no leases of many keys", hint="Use compare_set")

    async def _drop_lease(self, token: int) -> bool:
        raise UsageError(f"{type(self).__name__} has no leases of many keys", hint="Use set(…, ttl=…)")

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of the store; what waits fails with `RendezvousError`. May be called again."""

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
