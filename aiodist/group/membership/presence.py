"""Presence of a run's members: each claims a key at the store, which ends with its connection.

Needed where the store outlives a run of the job: what is on record there says who was in it, and not that
one still lives. One that was cut off from the store may come back when all ranks have begun anew. So each
run has a name, and one at a time is on record: who is of another has no say (`StoreArbiter`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b

from aiodist.base.errors import AuthenticationError, RendezvousError, RendezvousTimeout, StoreFull
from aiodist.group.membership.record import decode_record
from aiodist.rendezvous.store import Store

MEMBERS = "member/"
"""The beginning of the keys of members."""

LATEST = "latest"
"""Key that holds the record of a run's last epoch."""

RUN = "run"
"""Key that holds the name of the run; none where the members decide who goes on, and not the store."""

RENEWAL = 5.0
"""Seconds between a member's looks at its own key, which goes if it is cut off from the store for a while."""

GRACE = RENEWAL + 1
"""Seconds for which none of a run that lives may be seen."""

_PAUSE = 1.0  # seconds between a newcomer's looks
_DEAD = 3.0  # seconds in which a store finds that a process is dead


class Presence:
    """A member's own key. Not under a lease with a short ttl: a loop that computes for a minute is not dead.

    Members that are cut off from the store go on meanwhile, and all ranks may begin anew without them. So
    each looks which run is on record, as soon as it reaches the store again.

    Args:
        store: where the job meets.
        uid: the member's.
        words: who it is, for people.
        run: that the member is of; '': it is not looked which one is on record.
        replaced: called where that is another one. The key is left alone then.
        reopen: has the store be reached again that was given up.
    """

    def __init__(
        self,
        store: Store,
        uid: bytes,
        words: bytes,
        run: str = "",
        replaced: Callable[[], None] | None = None,
        reopen: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._run = run
        self._replaced = replaced
        self._reopen = reopen
        self._key = f"{MEMBERS}{uid.hex()}"
        self._words = words
        self._staying = asyncio.get_running_loop().create_task(self._stay())

    async def show(self) -> None:
        """Have the key there, also where it went while this process was cut off."""
        await self._store.claim(self._key, self._words)

    async def leave(self) -> None:
        """Take the key away: a goodbye to the store does not."""
        self._staying.cancel()
        await asyncio.wait([self._staying])
        await self._store.delete_key(self._key)

    async def _stay(self) -> None:
        while True:
            try:
                if await self._is_replaced():
                    if self._replaced is not None:
                        self._replaced()
                    return
                if not await self._store.check([self._key]):
                    await self._store.claim(self._key, self._words)
            except (RendezvousTimeout, StoreFull):
                pass  # it may become better
            except RendezvousError:
                if not await self._may_come_back():
                    return  # the store is gone, for those who could ask it, too
            await asyncio.sleep(RENEWAL)

    async def _is_replaced(self) -> bool:
        """Whether another run is on record, and no mere attempt to begin one, which is taken back."""
        for _ in range(2):
            if not self._run or await run_on_record(self._store) in ("", self._run):
                return False
            await asyncio.sleep(_PAUSE)
        return True

    async def _may_come_back(self) -> bool:
        """Reach the store again, which was given up → False: it is another one now, or was closed."""
        if self._reopen is None:
            return False
        try:
            await self._reopen()
        except RendezvousTimeout:
            return True
        except (RendezvousError, AuthenticationError):
            return False
        return True


def run_of(uids: Sequence[bytes]) -> str:
    """The name of the run that these processes begin."""
    return blake2b(b"".join(uids), digest_size=8).hexdigest()


async def run_on_record(store: Store) -> str:
    """The name of the run that is on record; '' for none."""
    return (await store.get(RUN)).decode(errors="replace") if await store.check([RUN]) else ""


async def begin_run(store: Store, run: str) -> None:
    """Put a run on record in the place of the last one, whose members have no say from here on.

    Raises:
        RendezvousError: one of them is there, and may have gone on by what the store had decided before.
    """
    name = run.encode()
    last = await store.compare_set(RUN, b"", name)
    if last == name or not await store.check([LATEST]):
        await store.set(RUN, name)
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _DEAD
    there = RendezvousError(
        "a member of the job's last run is there again",
        hint="Start this process again, to join it; or end that member first",
    )
    while await _is_there(store):
        if loop.time() >= deadline:
            raise there
        await asyncio.sleep(_PAUSE)
    await store.set(RUN, name)
    if await _is_there(store):  # it has come since, and perhaps asked before that
        await store.compare_set(RUN, name, last)
        raise there


async def _is_there(store: Store) -> bool:
    """Whether a member of the run on record is seen."""
    record = decode_record(await store.get(LATEST))
    seen = await store.list_keys(MEMBERS)
    return not {f"{MEMBERS}{uid.hex()}" for uid in record.members}.isdisjoint(seen)


async def is_deserted(store: Store) -> bool:
    """Whether no member of the run on record is there. False as soon as one is seen, True after `GRACE`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + GRACE
    while True:
        record = decode_record(await store.get(LATEST))
        if record.host:
            return False  # it hosts the store, and so it lives
        if await _is_there(store):
            return False
        if loop.time() >= deadline:
            return True
        await asyncio.sleep(_PAUSE)


async def until_deserted(store: Store) -> None:
    """Return when no member of the run on record, or of what became of it, is there any more."""
    while not await is_deserted(store):  # noqa: ASYNC110
        await asyncio.sleep(_PAUSE)
