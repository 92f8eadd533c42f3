"""The store's interface: small values under names, that processes meet by.

torch's names and meanings, awaitable. Values are bytes (a str is encoded as UTF-8); keys are str. Every
call that waits has a timeout, the store's own by default, and says what it waited for when it runs out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

from aiodist.base.errors import RendezvousTimeout, UsageError
from aiodist.base.timeouts import Timeout, seconds
from aiodist.rendezvous.lease import Lease
from aiodist.rendezvous.shapes import Value, check_key, check_keys, check_value
from aiodist.rendezvous.watch import Watch

DEFAULT_TIMEOUT = 300.0


class Store(ABC):
    """Interface of every store. A key is at most 4 KiB long, a value nearly 8 MiB.

    Args:
        timeout: seconds that a call without a timeout of its own may take.

    Attributes:
        address: this host's address on the way to the store, which peers can reach, too; of the loopback
            where the store is in this process.
        instance: bytes that name this very store, the same for all who use it; another one, also the next at
            the same address, has others. b'': the store does not say.
        on_replaced: called once if the store finds by itself that another run of the job has begun in the
            place of the one that this store is of. Only etcd's does.

    Raises (every method):
        UsageError: a key, value or number without meaning.
        RendezvousTimeout: it took too long; `missing` has the keys or ranks that were missing.
        StoreFull: it holds as much as it may.
        RendezvousError: the store is closed or lost.
    """

    address = "127.0.0.1"
    instance = b""

    def __init__(self, timeout: Timeout = None) -> None:
        self.timeout = DEFAULT_TIMEOUT if timeout is None else seconds(timeout)
        self.on_replaced: Callable[[], None] = _nothing

    # What kinds of stores differ in.

    @abstractmethod
    async def _call(self, method: str, args: list[Any], timeout: float | None = None) -> Any:
        """Have a request of the table `METHODS` answered.

        Args:
            args: its arguments, as they go over the wire.
            timeout: seconds that it may wait, where the table says that it waits: its last argument.

        Raises:
            RendezvousTimeout: of a request that waits for keys: `missing` has the places of those that nobody
                set among its keys; of one that waits for ranks, the ranks.
        """

    @abstractmethod
    def watch(self, prefix: str = "") -> Watch:
        """All keys that begin with `prefix` as they are now, then every change: an async iterator.

        After a broken connection, changes that overtook each other may be reported as one; the last
        state of every key always is.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the store; waiting calls fail with `RendezvousError`. May be called again."""

    # What is the same for all.

    def _patience(self, timeout: Timeout) -> float:
        return self.timeout if timeout is None else seconds(timeout)

    async def _await(self, method: str, keys: list[str], timeout: Timeout) -> Any:
        """Have a request that waits for keys answered; its error names them as the caller did."""
        try:
            return await self._call(method, [keys], self._patience(timeout))
        except RendezvousTimeout as error:
            places = (place for place in error.missing_ranks if 0 <= place < len(keys))
            error.missing = tuple(dict.fromkeys(keys[place] for place in places))
            raise

    async def set(self, key: str, value: Value, *, ttl: float | None = None) -> None:
        """Set a key.

        Args:
            ttl: makes the key a lease: it is removed after so many seconds unless it is set again. It is
                removed earlier if this client's connection ends without a goodbye and is not replaced within
                two seconds.
        """
        lasts = None if ttl is None else seconds(ttl, "ttl")
        await self._call("set", [check_key(key), check_value(value), lasts])

    async def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Set several keys at once; nobody sees only some of them."""
        await self._call("multi_set", [check_keys(keys), [check_value(value) for value in values]])

    async def multi_get(self, keys: Sequence[str], timeout: Timeout = None) -> list[bytes]:
        """The values of several keys, in their order, as soon as all exist."""
        values: list[bytes] = await self._await("multi_get", check_keys(keys), timeout)
        return values

    async def wait(self, keys: Sequence[str], timeout: Timeout = None) -> None:
        """Return as soon as all keys exist."""
        await self._await("wait", check_keys(keys), timeout)

    async def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist now."""
        return bool(await self._call("check", [check_keys(keys)]))

    async def add(self, key: str, amount: int) -> int:
        """Add to the decimal number that a key holds (0 where it is absent) → the sum; exactly once."""
        if type(amount) is not int:
            raise UsageError(f"add takes an int, got {type(amount).__name__}")
        return int(await self._call("add", [check_key(key), amount]))

    async def append(self, key: str, value: Value) -> None:
        """Append to what a key holds (nothing where it is absent); exactly once."""
        await self._call("append", [check_key(key), check_value(value)])

    async def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Set a key if it holds what is expected → what it holds now.

        As in torch: an absent key matches an empty `expected`; where `expected` is not empty, an absent
        key stays absent and `expected` is returned.
        """
        args = [check_key(key), check_value(expected), check_value(desired)]
        return bytes(await self._call("compare_set", args))

    async def claim(self, key: str, value: Value) -> bytes:
        """Set a key for as long as this process is a client, unless it holds something → what it holds now.

        The key is removed two seconds after the connection has ended without a goodbye, if the connection is
        not replaced; after a goodbye the key stays. A key that holds nothing is free. (A store without
        connections keeps the key.)
        """
        return bytes(await self._call("claim", [check_key(key), check_value(value)]))

    async def delete_key(self, key: str) -> bool:
        """Delete a key → whether it was there."""
        return bool(await self._call("delete_key", [check_key(key)]))

    async def list_keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, sorted."""
        return list(await self._call("list_keys", [check_key(prefix)]))

    async def num_keys(self, prefix: str = "") -> int:
        """The number of keys that begin with `prefix`."""
        return int(await self._call("num_keys", [check_key(prefix)]))

    async def gather(
        self, name: str, world_size: int, rank: int, value: Value, timeout: Timeout = None
    ) -> list[bytes]:
        """Leave a value and get those of all ranks, in rank order, as soon as all have come; one round trip.

        The name may be used again for the next round.

        Raises:
            RendezvousTimeout: `missing` holds the ranks that had not come, of very many the first 256.
            RendezvousError: two came as one rank, or they count different worlds.
        """
        args = [check_key(name), rank, world_size, check_value(value)]
        return list(await self._call("gather", args, self._patience(timeout)))

    async def barrier(self, name: str, world_size: int, rank: int, timeout: Timeout = None) -> None:
        """Return as soon as all ranks have come; errors as in `gather`. The name may be used again."""
        await self.gather(name, world_size, rank, b"", timeout)

    async def get(self, key: str, timeout: Timeout = None) -> bytes:
        """The value of a key, as soon as it exists."""
        values: list[bytes] = await self._await("multi_get", [check_key(key)], timeout)
        return values[0]

    def lease(self, ttl: float) -> Lease:
        """Keys that live as long as this process holds on to them.

            async with store.lease(10) as lease:
                await lease.set("workers/3", address)

        Args:
            ttl: seconds without renewal after which it ends, and its keys with it. It is renewed by itself,
                three times as often; a store that was started again grants everybody one ttl anew. It does
                not end with this client's connection: another may take it up in time.
        """
        return Lease(self._call, ttl)

    async def fence(self) -> int:
        """A fencing token: a number larger than all that this store has given before, to leases too.

        Write the token beside what you write elsewhere, and let that place refuse smaller ones. Then a
        process that was replaced while it slept can do no harm.
        """
        return int(await self._call("fence", []))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _nothing() -> None:
    pass
