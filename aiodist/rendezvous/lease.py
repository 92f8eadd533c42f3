"""Keys that live as long as their holder: a lease that renews itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiodist.base.errors import AiodistError, LeaseLost, RendezvousTimeout, UsageError
from aiodist.base.timeouts import seconds
from aiodist.rendezvous.shapes import Value, check_key, check_value

_RENEWALS = 3  # in one ttl
_RETRY = 0.1  # of a ttl, after a renewal that failed


class Lease:
    """Lease of a store (`Store.lease`). Enter it (`async with` or `await lease.begin()`), set keys, leave it.

    Times are of the loop's clock, which nobody sets. A lease has two ends. The *store's* end removes the keys
    and tells watches. The *holder's own* end (`held`) comes first: a ttl after the request of the last
    confirmed renewal. Before the holder does something that only the holder may do, it looks at `held`, and
    passes `token` to the place to which it writes.

    Attributes:
        ttl: seconds.
        held: whether this process may act as the holder.
        token: a fencing token: larger than that of every lease before it; 0 until it has begun.
        lost: the store has said that it is over. It does not come back; make a new one.
    """

    def __init__(self, call: Callable[[str, list[Any]], Awaitable[Any]], ttl: float) -> None:
        self.ttl = seconds(ttl, "ttl")
        self.token = 0
        self.lost = False
        self._call = call  # has a method of the store carried out, with these arguments
        self._confirmed = 0.0  # when the last renewal that was confirmed was asked for, loop time
        self._ended: asyncio.Event = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self) -> Self:
        """Have the store grant it, and renew it from now on. Errors as of every call to a store."""
        if self.token:
            raise UsageError("this lease has begun already", hint="Make another with store.lease(ttl)")
        loop = asyncio.get_running_loop()
        asked = loop.time()
        self.token = int(await self._call("lease_grant", [self.ttl]))
        self._confirmed = asked
        self._renewing = loop.create_task(self._renew())
        return self

    @property
    def held(self) -> bool:
        """Whether this process may act as the holder: nobody else can have got the lease yet."""
        if not self.token or self.lost or self._renewing is None:
            return False
        return asyncio.get_running_loop().time() < self._confirmed + self.ttl

    async def set(self, key: str, value: Value) -> None:
        """Set a key that ends with the lease.

        Raises:
            LeaseLost: it has ended.
            StoreFull: there is no room.
        """
        await self._call_leased("lease_set", key, value)

    async def claim(self, key: str, value: Value) -> bytes:
        """Set a key that ends with the lease, unless it is there → what it holds: whose it is.

        One of several that claim a key gets it; when its lease ends the key is free again, and a watch tells.
        Errors as of `set`.
        """
        return bytes(await self._call_leased("lease_claim", key, value))

    async def _call_leased(self, method: str, key: str, value: Value) -> Any:
        self._check()
        try:
            return await self._call(method, [self.token, check_key(key), check_value(value)])
        except LeaseLost:
            self._lose()
            raise

    def _check(self) -> None:
        if not self.token:
            raise UsageError("this lease has not begun", hint="Write 'async with store.lease(ttl) as lease:'")
        if self.lost:
            raise LeaseLost(f"lease {self.token} has ended", hint="Its keys are gone; begin a new one")
        if self._renewing is None:
            raise UsageError("this lease was given back", hint="Make another with store.lease(ttl)")

    async def wait_lost(self) -> None:
        """Return when the store has said that the lease is over, or the store is lost itself."""
        await self._ended.wait()

    async def aclose(self) -> None:
        """Give it back: its keys go now, or after a ttl where the store is away. May be called again."""
        renewing, self._renewing = self._renewing, None
        if renewing is None:
            return
        renewing.cancel()
        await asyncio.wait([renewing])
        if not self.lost:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.ttl):
                    await self._call("lease_end", [self.token])

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self.ttl / _RENEWALS
        while True:
            await asyncio.sleep(pause)
            asked = loop.time()
            try:
                if not await self._call("lease_renew", [self.token]):
                    self._lose()
                    return
            except RendezvousTimeout:  # a delay; whether the lease lasts is the store's to say
                pause = self.ttl * _RETRY
                continue
            except AiodistError:  # the store is over
                self._lose()
                return
            self._confirmed = asked
            pause = max(0.0, asked + self.ttl / _RENEWALS - loop.time())

    def _lose(self) -> None:
        self.lost = True
        self._ended.set()

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.aclose()
        except AiodistError:
            if kind is None:
                raise
