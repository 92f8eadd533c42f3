"""Waiting for something to change. A watch of etcd is only a hint to look again: what is, says a read.

The watch begins before the look, with what comes next: one that begins with what has been is served by etcd
every 100 ms only.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from aiodist.rendezvous.etcd import words
from aiodist.rendezvous.etcd.gateway import Gateway
from aiodist.rendezvous.etcd.refusals import Away

LOOK_SECONDS = 5.0
"""Who waits looks again after so long, also where no watch says so."""

_BACKOFF = 0.1  # seconds, at most, before looking again where the watch broke


async def look_until(
    look: Callable[[], Awaitable[bytes | None]], gateway: Gateway, arrived: Callable[[], float]
) -> bool:
    """Look until there is nothing more to wait for.

    Args:
        look: → the key that must be written before looking again is of use, None where all is there.
        arrived: called after the first look → the loop time until which to go on.

    Returns:
        False where the time was up first.
    """
    loop = asyncio.get_running_loop()
    key = await look()
    until = arrived()
    while key is not None:
        if loop.time() >= until:
            return False
        again = loop.time() + LOOK_SECONDS * random.uniform(1.0, 1.5)
        try:
            async with asyncio.timeout_at(min(until, again)) as limit:
                key = await _look_watching(look, gateway, key)
        except TimeoutError:
            if not limit.expired():
                raise
            key = await look()
        except Away:
            await asyncio.sleep(min(_BACKOFF * random.random(), max(0.0, until - loop.time())))
            key = await look()
    return True


async def _look_watching(
    look: Callable[[], Awaitable[bytes | None]], gateway: Gateway, key: bytes
) -> bytes | None:
    async with gateway.stream("/v3/watch", words.watch(key, b"", 0)) as messages:
        async for message in messages:
            news = words.news(message)
            if news.ended:
                raise Away(news.ended)
            if news.began or any(there for _, there in news.changes):
                wanted = await look()
                if wanted != key:
                    return wanted
    raise Away("it ended the stream")
