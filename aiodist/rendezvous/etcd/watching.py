"""Feed of a `Watch` from etcd: all keys as they are, then every change, over stream after stream."""

from __future__ import annotations

import asyncio

from aiodist.base.backoff import Backoff
from aiodist.base.errors import RendezvousTimeout
from aiodist.rendezvous.etcd import words
from aiodist.rendezvous.etcd.gateway import Gateway
from aiodist.rendezvous.etcd.refusals import Compacted, EtcdAway
from aiodist.rendezvous.etcd.run import EtcdRun
from aiodist.rendezvous.etcd.words import Item
from aiodist.rendezvous.watch import Watch

_AGAIN = 0.2  # seconds, at most, before a broken stream is replaced
_ASK_SECONDS = 300.0  # for one answer; a watch itself has no end


async def report(watch: Watch, gateway: Gateway, run: EtcdRun, prefix: bytes, cut: int) -> None:
    """Feed a watch until it is cancelled, or until an error ends it.

    A stream that breaks is taken up at the revision where it broke. Where etcd has compacted that one away,
    the keys are read anew, and `Watch` finds out what has changed.

    Args:
        prefix: of the keys in etcd.
        cut: how many bytes of a key in etcd are not part of the store's.
    """
    loop, backoff = asyncio.get_running_loop(), Backoff(_AGAIN, jitter=1.0)
    seen = 0  # all changes up to this revision are told
    try:
        while True:
            if not seen:
                try:
                    found = await run.txn([], [words.get_all(prefix)], deadline=loop.time() + _ASK_SECONDS)
                except RendezvousTimeout:
                    continue
                items = sorted(found.ranges[0].items, key=lambda item: item.revision)
                watch.restart()
                watch.feed([[_name(item, cut), item.value, item.revision] for item in items])
                seen = found.revision
            try:
                request = words.watch(prefix, words.after(prefix), seen + 1)
                async with gateway.watch(request) as messages:
                    async for news in messages:
                        for item, there in news.changes:
                            watch.feed([[_name(item, cut), item.value if there else None, item.revision]])
                        seen = max(seen, news.progress)
            except EtcdAway as error:
                if isinstance(error, Compacted):
                    seen = 0
                await asyncio.sleep(backoff.next())
    except Exception as error:
        watch.end(error)
        raise


def _name(item: Item, cut: int) -> str:
    """The name of a key; others than stores may have put one there that is no text."""
    return item.key[cut:].decode(errors="replace")
