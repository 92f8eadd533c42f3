"""A member's key comes back, goes with it, and tells newcomers whether anybody of the last run is left."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from aiodist.base.errors import RendezvousError, RendezvousTimeout, StoreReplaced
from aiodist.base.timeouts import Timeout
from aiodist.group.membership.presence import (
    GRACE,
    LATEST,
    MEMBERS,
    RENEWAL,
    RUN,
    Presence,
    begin_run,
    is_deserted,
    run_of,
    run_on_record,
)
from aiodist.group.membership.record import UID_BYTES, Record
from aiodist.rendezvous import HashStore
from aiodist.rendezvous.shapes import Value
from aiodist.testing import run_virtual

UIDS = tuple(bytes([rank + 1]) * UID_BYTES for rank in range(3))


def key_of(rank: int) -> str:
    return f"{MEMBERS}{UIDS[rank].hex()}"


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_key_that_went_with_a_connection_is_set_again_until_its_member_leaves() -> None:
    async def main() -> None:
        async with HashStore() as store:
            presence = Presence(store, UIDS[1], b"somebody")
            assert await store.get(key_of(1)) == b"somebody"
            await store.delete_key(key_of(1))
            began = now()
            assert await store.get(key_of(1)) == b"somebody"
            assert now() - began <= RENEWAL
            await presence.leave()
            assert await store.list_keys() == []
            assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())


def test_a_run_is_deserted_when_nobody_of_its_last_epoch_is_seen_for_a_while() -> None:
    async def main() -> None:
        async with HashStore() as store:
            await store.set(LATEST, Record(4, (1, 0), UIDS[:2]).encode())
            await store.set(key_of(2), b"of another run, or a newcomer")
            began = now()
            assert await is_deserted(store)
            assert now() - began >= GRACE

            looking = asyncio.create_task(is_deserted(store))
            await asyncio.sleep(RENEWAL)
            await store.set(key_of(1), b"had lost its connection")
            assert not await looking

            looking = asyncio.create_task(is_deserted(store))
            await store.delete_key(key_of(1))
            await asyncio.sleep(RENEWAL)
            await store.set(LATEST, Record(5, (1, 0), UIDS[2:]).encode())
            assert not await looking

    run_virtual(main())


def test_a_store_that_a_member_hosts_shows_that_it_lives() -> None:
    async def main() -> None:
        async with HashStore() as store:
            await store.set(LATEST, Record(0, (0, 0), UIDS, "127.0.0.1:29500", UIDS[1]).encode())
            assert not await is_deserted(store)

    run_virtual(main())


def test_a_run_begins_only_where_no_member_of_the_last_one_is_there() -> None:
    async def main() -> None:
        async with HashStore() as store:
            assert await run_on_record(store) == ""
            await begin_run(store, "first")
            await store.set(LATEST, Record(4, (1, 0), UIDS[:2]).encode())
            await store.set(key_of(1), b"was cut off, and is there again")
            await store.set(key_of(2), b"a newcomer")
            with pytest.raises(RendezvousError, match="last run is there again"):
                await begin_run(store, "second")
            assert await store.get(RUN) == b"first"

            beginning = asyncio.create_task(begin_run(store, "second"))
            await asyncio.sleep(0)
            await store.delete_key(key_of(1))  # it has died, and the store finds that
            await beginning
            assert await run_on_record(store) == "second"
            await begin_run(store, "second")

    run_virtual(main())


def test_a_run_does_not_begin_where_a_member_of_the_last_one_comes_meanwhile() -> None:
    class Late(HashStore):
        async def set(self, key: str, value: Value, *, ttl: float | None = None) -> None:
            if (key, value) == (RUN, b"second"):
                await super().set(key_of(1), b"was cut off, and is there again")
            await super().set(key, value, ttl=ttl)

    async def main() -> None:
        async with Late() as store:
            await begin_run(store, "first")
            await store.set(LATEST, Record(4, (1, 0), UIDS[:2]).encode())
            with pytest.raises(RendezvousError, match="last run is there again"):
                await begin_run(store, "second")
            assert await store.get(RUN) == b"first"

    run_virtual(main())


def test_a_member_learns_that_all_ranks_have_begun_anew_and_leaves_its_key_alone() -> None:
    async def main() -> None:
        async with HashStore() as store:
            told = asyncio.Event()
            await begin_run(store, "first")
            presence = Presence(store, UIDS[1], b"somebody", "first", told.set)
            assert await store.get(key_of(1)) == b"somebody"
            await asyncio.sleep(3 * RENEWAL)
            assert not told.is_set()
            await store.delete_key(key_of(1))
            await store.set(RUN, b"second")
            await told.wait()
            await asyncio.sleep(3 * RENEWAL)
            assert await store.list_keys(MEMBERS) == []
            await presence.leave()

    run_virtual(main())


def test_an_attempt_to_begin_anew_that_is_taken_back_harms_no_member() -> None:
    class Attempt(HashStore):
        async def get(self, key: str, timeout: Timeout = None) -> bytes:
            return b"second" if key == RUN and next(looks) == 1 else await super().get(key, timeout)

    looks = itertools.count()

    async def main() -> None:
        async with Attempt() as store:
            told = asyncio.Event()
            await begin_run(store, "first")
            presence = Presence(store, UIDS[1], b"somebody", "first", told.set)
            await asyncio.sleep(3 * RENEWAL)
            assert next(looks) > 2 and not told.is_set()
            assert await store.get(key_of(1)) == b"somebody"
            await presence.leave()

    run_virtual(main())


def test_a_store_that_was_given_up_is_reached_again_until_it_is_another_one() -> None:
    class Away(HashStore):
        away = False

        async def check(self, keys: Sequence[str]) -> bool:
            if self.away:
                raise RendezvousError("lost the connection to the store")
            return await super().check(keys)

    async def main() -> None:
        async with Away() as store:
            tries: list[Exception | None] = [RendezvousTimeout("not yet"), None, StoreReplaced("another")]

            async def reopen() -> None:
                if (error := tries.pop(0)) is not None:
                    raise error
                store.away = False

            presence = Presence(store, UIDS[1], b"somebody", reopen=reopen)
            assert await store.get(key_of(1)) == b"somebody"
            store.away = True
            await store.delete_key(key_of(1))
            assert await store.get(key_of(1)) == b"somebody"
            assert len(tries) == 1
            store.away = True
            await store.delete_key(key_of(1))
            await asyncio.sleep(5 * RENEWAL)
            assert not tries and await store.list_keys(MEMBERS) == []
            await presence.leave()

    run_virtual(main())


def test_each_runs_name_is_another_one() -> None:
    names = {run_of(UIDS), run_of(UIDS[:2]), run_of(UIDS[::-1])}
    assert len(names) == 3
    assert all(name.isascii() and "/" not in name for name in names)
