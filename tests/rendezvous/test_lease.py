"""Leases that renew themselves; clocks that jump, loops that stand still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from aiodist.base.errors import LeaseLost, RendezvousError, UsageError
from aiodist.rendezvous import HashStore, Lease, PrefixStore, StoreServer, TcpStore, WatchEvent
from aiodist.rendezvous.machine import RETURN_GRACE
from tests.rendezvous.conftest import Clock
from tests.support.store_client import connection_of
from tests.waiting import until_so

HOST = "127.0.0.1"
TTL = 60.0  # a loop that is held up for longer loses leases, rightly; tests put the clock forward


class ShiftedLoop:
    """A loop whose clock is ahead by what a test says: what a loop sees that stood still for so long."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ahead = 0.0
        self._loop = loop

    def time(self) -> float:
        return self._loop.time() + self.ahead

    def call_at(self, when: float, call: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        return self._loop.call_at(when - self.ahead, call, *args)


async def serve() -> StoreServer:
    return await StoreServer.start(HOST, 0, "job", b"secret")


async def connect(server: StoreServer) -> TcpStore:
    return await TcpStore.connect(HOST, server.port, "job", b"secret", 10)


async def pass_a_third(clock: Clock, lease: Lease) -> None:
    """A third of a ttl passes, and what its holder does then is done."""
    before = lease._confirmed
    clock.forward(TTL / 3)
    await until_so(lambda: lease._confirmed != before)


async def test_keys_live_as_long_as_their_lease(clock: Clock) -> None:
    async with await serve() as server, await connect(server) as one, await connect(server) as two:
        watch = two.watch("w/")
        async with PrefixStore("w", one).lease(TTL) as lease:
            assert lease.token > 0
            await lease.set("a", "1")
            await lease.set("b", "2")
            assert [await anext(watch), await anext(watch)] == [
                WatchEvent("w/a", b"1"),
                WatchEvent("w/b", b"2"),
            ]
            for _ in range(6):  # without renewal they would be gone
                await pass_a_third(clock, lease)
            assert lease.held
            assert await two.list_keys("w/") == ["w/a", "w/b"]
        assert {await anext(watch), await anext(watch)} == {WatchEvent("w/a", None), WatchEvent("w/b", None)}
        assert not server.store.machine.leases.by_token
        with pytest.raises(UsageError, match="was given back"):
            await lease.set("c", "3")


async def test_a_lease_in_one_loop() -> None:
    async with HashStore() as store:
        first = await store.lease(60).begin()
        await first.set("k", "v")
        assert await store.fence() > first.token
        async with store.lease(60) as second:
            assert second.token > first.token + 1
        with pytest.raises(UsageError, match="begun already"):
            await first.begin()
        with pytest.raises(UsageError, match="has not begun"):
            await store.lease(1).set("k", "v")
        await first.aclose()
        assert not await store.check(["k"])


async def test_a_lease_that_is_not_renewed_is_lost_and_its_holder_learns_it(clock: Clock) -> None:
    async with await serve() as server, await connect(server) as one, await connect(server) as two:
        lease = await one.lease(TTL).begin()
        await lease.set("k", "v")
        assert lease._renewing is not None
        lease._renewing.cancel()  # a process that is stopped renews nothing
        async with two.watch("k") as watch:
            events = [await anext(watch)]
            clock.forward(TTL)
            events.append(await anext(watch))
        assert events == [WatchEvent("k", b"v"), WatchEvent("k", None)]
        assert not lease.held, "its own clock says so before the store does"
        assert not lease.lost
        with pytest.raises(LeaseLost, match=rf"lease {lease.token} has ended"):
            await lease.set("k", "again")
        await lease.wait_lost()
        with pytest.raises(LeaseLost):
            await lease.set("k", "again")
        assert not await two.check(["k"])
        await lease.aclose()


async def test_renewals_tell_a_holder_that_it_lost(clock: Clock) -> None:
    async with (
        await serve() as server,
        await connect(server) as one,
        await connect(server) as two,
        one.lease(TTL) as lease,
    ):
        assert await two._call("lease_end", [lease.token])  # an operator, say
        clock.forward(TTL / 3)
        await lease.wait_lost()
        assert lease.lost and not lease.held


async def test_a_lease_ends_with_the_store(clock: Clock) -> None:
    server = await serve()
    store = await connect(server)
    lease = await store.lease(TTL).begin()
    await server.aclose()
    clock.forward(TTL / 3)
    await lease.wait_lost()
    with pytest.raises(RendezvousError):
        async with store.lease(TTL):
            pass
    await lease.aclose()
    await store.aclose()


async def test_a_key_that_another_lease_takes_over_stays_with_it() -> None:
    async with HashStore() as store:
        one, two = await store.lease(60).begin(), await store.lease(60).begin()
        await one.set("k", "1")
        await two.set("k", "2")
        await one.set("own", "1")
        await one.aclose()
        assert await store.list_keys() == ["k"]
        await store.set("k", "3")  # nobody's
        await two.aclose()
        assert await store.get("k") == b"3"


async def test_of_several_that_claim_a_key_one_has_it_until_its_lease_ends() -> None:
    async with await serve() as server, await connect(server) as store:
        names = [f"candidate {number}".encode() for number in range(5)]
        leases = [await store.lease(60).begin() for _ in names]
        found = await asyncio.gather(
            *(lease.claim("leader", name) for lease, name in zip(leases, names, strict=True))
        )
        [leader] = set(found)
        watch = store.watch("leader")
        assert await anext(watch) == WatchEvent("leader", leader)
        await leases.pop(names.index(leader)).aclose()
        assert await anext(watch) == WatchEvent("leader", None)
        assert await leases[0].claim("leader", "next") == b"next"
        with pytest.raises(LeaseLost):
            await store._call("lease_claim", [1, "other", b""])
        for lease in leases:
            await lease.aclose()


async def test_giving_back_does_not_wait_for_a_store_that_is_away(tmp_path: Path, clock: Clock) -> None:
    server = await StoreServer.start(HOST, 0, "job", b"secret", data=tmp_path / "d")
    store = await connect(server)
    lease = await store.lease(TTL).begin()
    await server.aclose()
    gives_back = asyncio.ensure_future(lease.aclose())
    await until_so(lambda: store._pending)
    clock.forward(TTL)
    await gives_back
    await store.aclose()


# Clocks.


async def test_the_clock_on_the_wall_does_not_matter(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """It jumps by an hour, forth and back, at every look."""
    real, jumps = time.time, [0]

    def jumping() -> float:
        jumps[0] += 1
        return real() + (3600 if jumps[0] % 2 else -3600)

    monkeypatch.setattr(time, "time", jumping)
    assert abs(time.time() - time.time()) > 7000
    async with (
        await serve() as server,
        await connect(server) as one,
        await connect(server) as two,
        one.lease(TTL) as lease,
        two.watch() as watch,
    ):
        await lease.set("leased", "")
        await two.set("short", "", ttl=TTL)
        await two.set("long", "", ttl=2 * TTL)
        seen = [await anext(watch) for _ in range(3)]
        for _ in range(3):
            await pass_a_third(clock, lease)
        seen.append(await anext(watch))
        assert seen[-1] == WatchEvent("short", None)
        assert await two.list_keys() == ["leased", "long"]
        assert lease.held


async def stand_still(server: StoreServer, seconds: float) -> None:
    """The server's loop comes back after so long, and looks at the time before it looks at its sockets."""
    clock = cast("ShiftedLoop", server.store._loop)
    clock.ahead += seconds
    server.store._tick()


async def test_a_server_that_stood_still_reads_first_what_was_renewed_meanwhile() -> None:
    async with await serve() as server, await connect(server) as one, await connect(server) as two:
        server.store._loop = cast("Any", ShiftedLoop(server.store._loop))
        token = await one._call("lease_grant", [TTL])
        await one._call("lease_set", [token, "renewed", b""])
        await two.set("forgotten", "", ttl=TTL)
        await two.set("set again", "", ttl=TTL)
        sent = [
            asyncio.ensure_future(one._call("lease_renew", [token])),
            asyncio.ensure_future(two.set("set again", "", ttl=TTL)),
        ]
        await asyncio.sleep(0)
        two._flush()  # several tasks asked in this turn; theirs would leave in the next
        await stand_still(server, 1.5 * TTL)  # the renewals are in the sockets, nobody has read them
        assert sorted(server.store.machine.keys.entries) == ["renewed", "set again"]
        assert await sent[0] is True
        await sent[1]


async def test_a_server_that_stood_still_takes_no_deadline_for_missed() -> None:
    async with await serve() as server, await connect(server) as one, await connect(server) as two:
        server.store._loop = cast("Any", ShiftedLoop(server.store._loop))
        waits = asyncio.ensure_future(one.get("k", timeout=TTL))
        await until_so(lambda: server.store.machine.waits.calls)
        sets = asyncio.ensure_future(two.set("k", "in time"))
        await asyncio.sleep(0)
        await stand_still(server, 1.5 * TTL)
        assert await waits == b"in time"
        await sets


async def test_who_is_away_is_still_missed_soon() -> None:
    async with await serve() as server, await connect(server) as one, await connect(server) as two:
        server.store._loop = cast("Any", ShiftedLoop(server.store._loop))
        lease = await one.lease(1000).begin()
        await lease.set("leased", "")
        await one.set("k", "", ttl=1000)
        one._reconnect = lambda: None  # type: ignore[method-assign]
        connection_of(one).abort()
        await until_so(lambda: len(server.store.clients) != 2)
        assert await two.check(["k"])
        await stand_still(server, RETURN_GRACE)
        assert not await two.check(["k"])
        assert await two.check(["leased"])  # its holder counts on it
        assert lease.held
        assert lease._renewing is not None
        lease._renewing.cancel()
