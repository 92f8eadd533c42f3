"""Presence of a run's members: each claims a key at the store, which ends with its connection.

Needed where the store outlives a run of the job: what is on record there says who was in it, and not that
one still lives.
"""

from __future__ import annotations

import asyncio

from aiodist.base.errors import RendezvousError, RendezvousTimeout, StoreFull
from aiodist.group.membership.record import decode_record
from aiodist.rendezvous.store import Store

MEMBERS = "member/"
"""The beginning of the keys of members."""

LATEST = "latest"
"""Key that holds the record of a run's last epoch."""

RENEWAL = 5.0
"""Seconds between a member's looks at its own key, which goes if it is cut off from the store for a while."""

GRACE = RENEWAL + 1
"""Seconds for which none of a run that lives may be seen."""

_PAUSE = 1.0  # seconds between a newcomer's looks


class Presence:
    """A member's own key. Not under a lease with a short ttl: a loop that computes for a minute is not dead.

    Args:
        store: where the job meets.
        uid: the member's.
        words: who it is, for people.
    """

    def __init__(self, store: Store, uid: bytes, words: bytes) -> None:
        self._store = store
        self._key = f"{MEMBERS}{uid.hex()}"
        self._words = words
        self._staying = asyncio.get_running_loop().create_task(self._stay())

    async def leave(self) -> None:
        """Take the key away: a goodbye to the store does not."""
        self._staying.cancel()
        await asyncio.wait([self._staying])
        await self._store.delete_key(self._key)

    async def _stay(self) -> None:
        while True:
            try:
                if not await self._store.check([self._key]):
                    await self._store.claim(self._key, self._words)
            except (RendezvousTimeout, StoreFull):
                pass  # it may become better
            except RendezvousError:
                return  # the store is gone, for those who could ask it, too
            await asyncio.sleep(RENEWAL)


async def is_deserted(store: Store) -> bool:
    """Whether no member of the run on record is there. False as soon as one is seen, True after `GRACE`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + GRACE
    while True:
        record = decode_record(await store.get(LATEST))
        if record.host:
            return False  # it hosts the store, and so it lives
        seen = await store.list_keys(MEMBERS)
        if not {f"{MEMBERS}{uid.hex()}" for uid in record.members}.isdisjoint(seen):
            return False
        if loop.time() >= deadline:
            return True
        await asyncio.sleep(_PAUSE)


async def until_deserted(store: Store) -> None:
    """Return when no member of the run on record, or of what became of it, is there any more."""
    while not await is_deserted(store):  # noqa: ASYNC110
        await asyncio.sleep(_PAUSE)
