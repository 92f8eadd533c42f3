"""A part of a store, as if it were all of it."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.rendezvous.store import Store, Value, Watch, check_key, check_keys
from aiodist.timeouts import Timeout


class PrefixStore(Store):
    """A view of a store: every key and name has `prefix/` in front (as in torch). Closing it closes nothing.

    Args:
        prefix: what stands before every key.
        store: where the keys are; it must outlive the view.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__(store.timeout)
        self._prefix = f"{prefix}/"
        self._store = store

    @property
    def underlying(self) -> Store:
        """The store behind the view."""
        return self._store

    def _patience(self, timeout: Timeout) -> Timeout:
        return self.timeout if timeout is None else timeout

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _all(self, keys: Sequence[str]) -> list[str]:
        return [self._full(key) for key in check_keys(keys)]

    async def set(self, key: str, value: Value, *, ttl: float | None = None) -> None:
        await self._store.set(self._full(key), value, ttl=ttl)

    async def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        await self._store.multi_set(self._all(keys), values)

    async def multi_get(self, keys: Sequence[str], timeout: Timeout = None) -> list[bytes]:
        return await self._store.multi_get(self._all(keys), self._patience(timeout))

    async def wait(self, keys: Sequence[str], timeout: Timeout = None) -> None:
        await self._store.wait(self._all(keys), self._patience(timeout))

    async def check(self, keys: Sequence[str]) -> bool:
        return await self._store.check(self._all(keys))

    async def add(self, key: str, amount: int) -> int:
        return await self._store.add(self._full(key), amount)

    async def append(self, key: str, value: Value) -> None:
        await self._store.append(self._full(key), value)

    async def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        return await self._store.compare_set(self._full(key), expected, desired)

    async def claim(self, key: str, value: Value) -> bytes:
        return await self._store.claim(self._full(key), value)

    async def delete_key(self, key: str) -> bool:
        return await self._store.delete_key(self._full(key))

    async def list_keys(self, prefix: str = "") -> list[str]:
        cut = len(self._prefix)
        return [key[cut:] for key in await self._store.list_keys(self._full(prefix))]

    async def num_keys(self, prefix: str = "") -> int:
        return await self._store.num_keys(self._full(prefix))

    async def gather(
        self, name: str, world_size: int, rank: int, value: Value, timeout: Timeout = None
    ) -> list[bytes]:
        return await self._store.gather(self._full(name), world_size, rank, value, self._patience(timeout))

    def watch(self, prefix: str = "") -> Watch:
        return self._store.watch(self._full(prefix)).under(self._prefix)

    async def fence(self) -> int:
        return await self._store.fence()

    async def _begin_lease(self, ttl: float) -> int:
        return await self._store._begin_lease(ttl)

    async def _keep_lease(self, token: int) -> bool:
        return await self._store._keep_lease(token)

    async def _put_leased(self, token: int, key: str, value: Value) -> None:
        await self._store._put_leased(token, self._full(key), value)

    async def _claim_leased(self, token: int, key: str, value: Value) -> bytes:
        return await self._store._claim_leased(token, self._full(key), value)

    async def _drop_lease(self, token: int) -> bool:
        return await self._store._drop_lease(token)

    async def aclose(self) -> None:
        """Nothing: whoever made the store behind it closes that."""
