"""Waiting for something to change. A watch of etcd is only a hint to read again: what is, says a read.

The watch begins before the read, with what comes next: one that begins with what has been is served by etcd
every 100 ms only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiodist.base.backoff import Backoff
from aiodist.net.tasks import settle
from aiodist.rendezvous.etcd import words
from aiodist.rendezvous.etcd.gateway import Gateway
from aiodist.rendezvous.etcd.refusals import EtcdAway

READ_SECONDS = 5.0
"""Seconds after which a call that waits reads again, also where no watch says so."""

_AGAIN = 0.1  # seconds, at most, before reading again where the watch broke


class WaitingCall:
    """A call of the store's under way.

    Attributes:
        timeout: seconds that it waits for others.
        deadline: loop time until which etcd is asked.
        scope: what ends it when the store is closed.
        has_arrived: done when it has reached etcd.
        ended: done when it is over.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float, grace: float) -> None:
        self._loop = loop
        self.timeout = timeout
        self.deadline = loop.time() + timeout + grace
        self.scope = asyncio.timeout(None)
        self.has_arrived: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def arrived(self) -> float:
        """Note that it has reached etcd: its time to wait begins → the loop time when that ends."""
        settle(self.has_arrived, None)
        return min(self._loop.time() + self.timeout, self.deadline)


async def read_until(
    read: Callable[[], Awaitable[bytes | None]], gateway: Gateway, call: WaitingCall
) -> bool:
    """Look until there is nothing more to wait for.

    Args:
        read: → the key that must be written before reading again is of use, None where all is there.
        call: has arrived after the first read; says until when to go on.

    Returns:
        False where the time was up first.
    """
    loop, backoff = asyncio.get_running_loop(), Backoff(_AGAIN, jitter=1.0)
    reads = Backoff(1.5 * READ_SECONDS, jitter=1 / 3)
    key = await read()
    until = call.arrived()
    while key is not None:
        if loop.time() >= until:
            return False
        again = loop.time() + reads.next()
        try:
            async with asyncio.timeout_at(min(until, again)) as limit:
                key = await _read_watching(read, gateway, key)
        except TimeoutError:
            if not limit.expired():
                raise
            key = await read()
        except EtcdAway:
            await asyncio.sleep(min(backoff.next(), max(0.0, until - loop.time())))
            key = await read()
    return True


async def _read_watching(
    read: Callable[[], Awaitable[bytes | None]], gateway: Gateway, key: bytes
) -> bytes | None:
    async with gateway.watch(words.watch(key, b"", 0)) as messages:
        async for news in messages:
            if news.began or any(there for _, there in news.changes):
                wanted = await read()
                if wanted != key:
                    return wanted
    raise EtcdAway("it ended the stream")
