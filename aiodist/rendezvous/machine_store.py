"""What all stores on a `StoreMachine` share, wherever the machine is: the calls, as requests."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from aiodist.errors import (
    AiodistError,
    LeaseLost,
    RendezvousError,
    RendezvousTimeout,
    StoreFull,
    StoreReplaced,
    UsageError,
)
from aiodist.rendezvous.store import Store, Value, check_key, check_keys, check_value
from aiodist.timeouts import Timeout, seconds


class MachineStore(Store):
    """A store whose calls all become one `_call`."""

    @abstractmethod
    async def _call(self, method: str, args: list[Any], timeout: float | None = None) -> Any:
        """Have a request answered. With a timeout, the machine keeps it: it becomes the last argument."""

    def _patience(self, timeout: Timeout) -> float:
        return self.timeout if timeout is None else seconds(timeout)

    async def set(self, key: str, value: Value, *, ttl: float | None = None) -> None:
        await self._call(
            "set", [check_key(key), check_value(value), None if ttl is None else seconds(ttl, "ttl")]
        )

    async def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        await self._call("multi_set", [check_keys(keys), [check_value(value) for value in values]])

    async def multi_get(self, keys: Sequence[str], timeout: Timeout = None) -> list[bytes]:
        values: list[bytes] = await self._call("multi_get", [check_keys(keys)], self._patience(timeout))
        return values

    async def get(self, key: str, timeout: Timeout = None) -> bytes:
        value: bytes
        [value] = await self._call("multi_get", [[check_key(key)]], self._patience(timeout))
        return value

    async def wait(self, keys: Sequence[str], timeout: Timeout = None) -> None:
        await self._call("wait", [check_keys(keys)], self._patience(timeout))

    async def check(self, keys: Sequence[str]) -> bool:
        return bool(await self._call("check", [check_keys(keys)]))

    async def add(self, key: str, amount: int) -> int:
        if type(amount) is not int:
            raise UsageError(f"add takes an int, got {type(amount).__name__}")
        return int(await self._call("add", [check_key(key), amount]))

    async def append(self, key: str, value: Value) -> None:
        await self._call("append", [check_key(key), check_value(value)])

    async def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        return bytes(
            await self._call("compare_set", [check_key(key), check_value(expected), check_value(desired)])
        )

    async def claim(self, key: str, value: Value) -> bytes:
        return bytes(await self._call("claim", [check_key(key), check_value(value)]))

    async def delete_key(self, key: str) -> bool:
        return bool(await self._call("delete_key", [check_key(key)]))

    async def list_keys(self, prefix: str = "") -> list[str]:
        return list(await self._call("list_keys", [check_key(prefix)]))

    async def num_keys(self, prefix: str = "") -> int:
        return int(await self._call("num_keys", [check_key(prefix)]))

    async def gather(
        self, name: str, world_size: int, rank: int, value: Value, timeout: Timeout = None
    ) -> list[bytes]:
        args = [check_key(name), rank, world_size, check_value(value)]
        return list(await self._call("gather", args, self._patience(timeout)))

    async def fence(self) -> int:
        return int(await self._call("fence", []))

    async def _begin_lease(self, ttl: float) -> int:
        return int(await self._call("lease_grant", [ttl]))

    async def _keep_lease(self, token: int) -> bool:
        return bool(await self._call("lease_renew", [token]))

    async def _put_leased(self, token: int, key: str, value: Value) -> None:
        await self._call("lease_set", [token, check_key(key), check_value(value)])

    async def _claim_leased(self, token: int, key: str, value: Value) -> bytes:
        return bytes(await self._call("lease_claim", [token, check_key(key), check_value(value)]))

    async def _drop_lease(self, token: int) -> bool:
        return bool(await self._call("lease_end", [token]))


_ERRORS: dict[str, type[RendezvousError]] = {
    "full": StoreFull,
    "lease": LeaseLost,
    "older": StoreReplaced,
}


def error_of(kind: str, message: str, hint: str, missing: Sequence[int]) -> AiodistError:
    """The exception for a `Failure` of the machine."""
    if kind == "usage":
        return UsageError(message, hint=hint)
    if kind == "timeout":
        return RendezvousTimeout(message, missing=missing, hint=hint)
    return _ERRORS.get(kind, RendezvousError)(message, hint=hint)


def check_use(loop: asyncio.AbstractEventLoop, closed: AiodistError | None) -> None:
    """Raise where a connected store must not be used: on another loop, or once it is `closed`."""
    if asyncio.get_running_loop() is not loop:
        raise UsageError("this store belongs to another event loop", hint="Connect once in each loop")
    if closed is not None:
        raise again(closed)


def again(error: AiodistError) -> RendezvousError:
    """The same error for another reader: one object raised in many tasks would collect all their traces."""
    kind = type(error) if isinstance(error, RendezvousError) else RendezvousError
    return kind(error.message, hint=error.hint)
