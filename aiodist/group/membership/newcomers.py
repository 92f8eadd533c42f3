"""Newcomers that wait at the store for admission, and how they are invited.

newcomer: join/<uid> (a lease) ──▶ members see it ──▶ invite/<uid> = the draft ──▶ it forms it with them
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable

from aiodist.base.errors import RendezvousError, WireError
from aiodist.group.membership.record import UID_BYTES, Record, decode_record
from aiodist.rendezvous.store import Store
from aiodist.rendezvous.watch import Watch

QUEUE = "join/"
"""The beginning of the keys of those who wait."""

OVER = "over"
"""Key that says that all members of the last epoch have left, with all well."""

TTL = 6.0
"""Seconds after which a newcomer that does not renew its place is forgotten, if its connection lives on."""


_AGAIN, _LONGEST = 10.0, 600.0  # seconds for which a newcomer is passed over; they double up to the second


class PassedOver:
    """Newcomers that reached the store, and not the members: a draft with each of them came to nothing.

    The first time it may have been chance, so it counts as waiting at once again. Afterwards it is passed
    over for longer and longer. Otherwise a newcomer behind a firewall would keep the members from going on.
    Pure.
    """

    def __init__(self) -> None:
        self._tries: dict[bytes, int] = {}
        self._until: dict[bytes, float] = {}

    def note(self, uids: Iterable[bytes], now: float) -> None:
        """Note that these could not come in; `now` in seconds of any clock."""
        for uid in uids:
            tries = self._tries.get(uid, 0)
            self._tries[uid] = tries + 1
            self._until[uid] = now + min(_AGAIN * (2**tries - 1), _LONGEST)

    def at(self, now: float) -> set[bytes]:
        """Those that are passed over at a time."""
        return {uid for uid, until in self._until.items() if now < until}


class AdmissionRequest:
    """A newcomer's request for admission: a place in the queue.

    Args:
        store: where the job meets.
        uid: the newcomer's.
        words: who it is, for people.
    """

    def __init__(self, store: Store, uid: bytes, words: bytes) -> None:
        self._store = store
        self._key = f"{QUEUE}{uid.hex()}"
        self._invite = f"invite/{uid.hex()}"
        self._words = words
        self._renewal: asyncio.Task[None] | None = None

    async def submit(self) -> Watch:
        """Take the place → a watch on what `invitation` reads."""
        await self._store.set(self._key, self._words, ttl=TTL)
        self._renewal = asyncio.get_running_loop().create_task(self._renew())
        return self._store.watch(self._invite)

    async def withdraw(self) -> None:
        """Give the place up: it was admitted, or waits no longer."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
            self._renewal = None
        with contextlib.suppress(RendezvousError):
            await self._store.delete_key(self._key)
            await self._store.delete_key(self._invite)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(TTL / 3)
            with contextlib.suppress(RendezvousError):
                await self._store.set(self._key, self._words, ttl=TTL)


async def pending(store: Store) -> list[bytes]:
    """The uids of those who wait, in a fixed order."""
    found = [uid_in(key) for key in await store.list_keys(QUEUE)]
    return [uid for uid in found if uid is not None]


def uid_in(key: str) -> bytes | None:
    """The uid in a key of the queue; None for another key."""
    try:
        uid = bytes.fromhex(key.removeprefix(QUEUE))
    except ValueError:
        return None
    return uid if len(uid) == UID_BYTES else None


class WaitingList:
    """The newcomers that wait, known to a member without asking the store each time: it watches their queue.

    Args:
        store: where the job meets.
        members: uids that are no newcomers any more.
    """

    def __init__(self, store: Store, members: Collection[bytes]) -> None:
        self._store = store
        self._members = members
        self._task: asyncio.Task[None] | None = None
        self._uids: set[bytes] = set()

    async def count(self, without: Collection[bytes] = ()) -> int:
        """The number of waiting newcomers. The first time it asks the store; 0 where that is out of reach.

        Args:
            without: uids that do not count.
        """
        if self._task is None or self._task.done():
            try:
                self._uids = set(await pending(self._store))
            except RendezvousError:
                return 0
            self._task = asyncio.get_running_loop().create_task(self._watch())
        return len(self._uids.difference(self._members, without))

    async def _watch(self) -> None:
        try:
            async with self._store.watch(QUEUE) as watch:
                async for key, value in watch:
                    uid = uid_in(key)
                    if uid is not None:
                        (self._uids.discard if value is None else self._uids.add)(uid)
        except RendezvousError:
            pass  # the next question asks the store again

    def close(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()


async def invite(store: Store, uids: Iterable[bytes], record: Record) -> None:
    """Tell newcomers the draft that they are in."""
    keys = [f"invite/{uid.hex()}" for uid in uids]
    if keys:
        await store.multi_set(keys, [record.encode()] * len(keys))


def invitation(value: bytes | None) -> Record | None:
    """The draft in an invitation; None for what is none."""
    if not value:
        return None
    with contextlib.suppress(WireError):
        return decode_record(value)
    return None
