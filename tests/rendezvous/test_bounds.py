"""What clients can make a store keep is bounded, and what it costs is accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aiodist.base.errors import StoreFull, UsageError
from aiodist.rendezvous import HashStore, StoreServer, TcpStore, WatchEvent
from aiodist.rendezvous import job_store as job_store_module
from aiodist.rendezvous.events import Connected, Disconnected, Failure, StoreReply, StoreRequest, Tick
from aiodist.rendezvous.machine import StoreMachine, budget, sessions, watches
from tests.support.store_client import connection_of
from tests.waiting import until_so

HOST = "127.0.0.1"
A, B = b"a" * 16, b"b" * 16


@pytest.fixture
async def server() -> AsyncIterator[StoreServer]:
    async with await StoreServer.start(HOST, 0, "job", b"secret", limit=100_000) as server:
        yield server


async def connect(server: StoreServer) -> TcpStore:
    return await TcpStore.connect(HOST, server.port, "job", b"secret", 10)


async def test_a_full_store_says_so_and_what_fits_still_happens(server: StoreServer) -> None:
    async with await connect(server) as store:
        await store.set("k", bytes(90_000))
        for call in (
            store.set("more", bytes(20_000)),
            store.set("leased", bytes(20_000), ttl=60),
            store.multi_set(["one", "two"], [bytes(6_000), bytes(6_000)]),
            store.append("k", bytes(20_000)),
            store.compare_set("k", bytes(90_000), bytes(110_000)),
        ):
            with pytest.raises(StoreFull, match=r"the store is full: this takes \d+ bytes more, it keeps"):
                await call
        async with store.lease(60) as lease:
            with pytest.raises(StoreFull):
                await lease.set("more", bytes(20_000))
        assert await store.list_keys() == ["k"]
        await store.set("k", bytes(80_000))
        await store.set("more", bytes(15_000))
        await store.delete_key("k")
        await store.set("again", bytes(70_000))


async def test_waiting_calls_and_cards_count(server: StoreServer) -> None:
    async with await connect(server) as one, await connect(server) as two:
        with pytest.raises(StoreFull):
            await one.gather("g", 2, 0, bytes(120_000))
        with pytest.raises(StoreFull):
            await one.wait([f"{number}" * 100 for number in range(1000)])
        before = server.store.machine.budget.size
        waits = asyncio.ensure_future(one.wait(["k" * 1000]))
        meets = asyncio.ensure_future(one.barrier("b", 2, 0))
        await until_so(lambda: server.store.machine.waits.calls and server.store.machine.gathers.calls)
        assert server.store.machine.budget.size > before + 1000
        meets.cancel()
        await two.set("k" * 1000, "")
        await waits
        await two.delete_key("k" * 1000)
        await until_so(lambda: not server.store.machine.gathers.calls)
        assert await two.check([])  # by which it confirms the answer before
        assert server.store.machine.budget.size == before


def fed(machine: StoreMachine, client: bytes, id: int, method: str, *args: Any) -> object:
    answers = [
        effect
        for effect in machine.handle(StoreRequest(client, id, method, list(args)), 0.0)
        if isinstance(effect, StoreReply | Failure) and effect.client == client
    ]
    return answers[-1] if answers else None


def test_answers_that_a_client_never_confirms_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_UNSETTLED", 10)
    machine = StoreMachine(10_000)
    machine.handle(Connected(A), 0.0)
    for id in range(1, 11):
        assert isinstance(fed(machine, A, id, "add", "n", 1), StoreReply)
    failure = fed(machine, A, 11, "add", "n", 1)
    assert isinstance(failure, Failure) and failure.kind == "full"
    assert isinstance(fed(machine, A, 12, "ping"), StoreReply)
    machine.handle(StoreRequest(A, 13, "add", ["n", 1], list(range(1, 11))), 0.0)
    assert isinstance(fed(machine, A, 14, "add", "n", 1), StoreReply)


def test_large_answers_weigh_until_they_are_confirmed() -> None:
    machine = StoreMachine(10_000)
    machine.handle(Connected(A), 0.0)
    nothing = machine.budget.size
    fed(machine, A, 1, "gather", "alone", 0, 1, bytes(3000), 1.0)
    assert 3000 < machine.budget.size - nothing < 3500
    fed(machine, A, 2, "gather", "alone", 0, 1, bytes(3000), 1.0)
    failure = fed(machine, A, 3, "gather", "alone", 0, 1, bytes(3000), 1.0)
    assert isinstance(failure, Failure) and failure.kind == "full"
    machine.handle(StoreRequest(A, 4, "ping", [], [1, 2]), 0.0)
    assert machine.budget.size == nothing
    fed(machine, A, 5, "compare_set", "k", b"", bytes(4000))
    assert machine.budget.size > 8000
    machine.handle(StoreRequest(A, 6, "goodbye", [], []), 0.0)
    assert machine.budget.size < 5000


def test_calls_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_WAITING", 3)
    machine = StoreMachine()
    machine.handle(Connected(A), 0.0)
    calls: list[Any] = [("wait", ["k"], 9.0), ("watch", "w"), ("gather", "g", 0, 2, b"", 9.0)]
    for id, (method, *args) in enumerate(calls, 1):
        assert not isinstance(fed(machine, A, id, method, *args), Failure)
    calls[2] = ("gather", "h", 0, 2, b"", 9.0)
    for method, *args in calls:
        failure = fed(machine, A, 9, method, *args)
        assert isinstance(failure, Failure) and failure.kind == "full"
    machine.handle(Disconnected(A), 0.0)
    machine.handle(Connected(B), 0.0)
    assert fed(machine, B, 1, "wait", ["k"], 9.0) is None


def test_clients_that_were_given_up_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it nobody unknown is believed any more to be new."""
    monkeypatch.setattr(sessions, "MAX_ENDED", 2)
    machine = StoreMachine()
    for number in range(3):
        client = bytes([number]) * 16
        machine.handle(Connected(client), 0.0)
        fed(machine, client, 1, "add", "n", 1)
        machine.handle(Disconnected(client), 0.0)
    machine.handle(Tick(), 1e6)
    assert len(machine.sessions.ended) == 2
    machine.handle(Connected(A), 1e6)
    failure = fed(machine, A, 2, "resume", [1], 0)
    assert isinstance(failure, Failure) and failure.kind == "lost"


async def test_a_value_that_could_never_be_read_is_not_made() -> None:
    async with HashStore() as store:
        await store.set("k", bytes(5 << 20))
        with pytest.raises(UsageError, match="append makes 'k' larger than"):
            await store.append("k", bytes(5 << 20))
        assert len(await store.get("k")) == 5 << 20


# Watches.


async def test_the_state_comes_in_pieces_and_then_the_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "PUSH_BYTES", 100)
    async with (
        await StoreServer.start(HOST, 0, "job", b"") as server,
        await TcpStore.connect(HOST, server.port, "job", b"") as store,
    ):
        for number in range(20):
            await store.set(f"k{number:02}", bytes(40))
        async with store.watch("k") as watch:
            await store.set("k20", "new")
            seen = [await anext(watch) for _ in range(21)]
        assert [event.key for event in seen] == [f"k{number:02}" for number in range(21)]
        [connection] = server.store.clients.values()
        async with store.watch("k") as watch:
            for _ in range(21):
                await anext(watch)
            await store.delete_key("k03")
            connection.abort()
            await store.set("k21", "newer")
            assert {await anext(watch), await anext(watch)} == {
                WatchEvent("k03", None),
                WatchEvent("k21", b"newer"),
            }


async def test_a_watch_of_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MAX_WATCHED", 1000)
    async with (
        await StoreServer.start(HOST, 0, "job", b"") as server,
        await TcpStore.connect(HOST, server.port, "job", b"") as store,
    ):
        await store.set("large/k", bytes(2000))
        with pytest.raises(
            UsageError, match=r"lie under 'l'; a watch can begin with .*\. Watch a longer prefix"
        ):
            await anext(store.watch("l"))
        watch = store.watch("small")
        await store.set("small", "1")
        assert await anext(watch) == WatchEvent("small", b"1")


async def test_who_does_not_read_is_cut_off_and_sees_it_all_afresh(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_store_module, "MAX_SLOW", 3 << 20)
    async with await StoreServer.start(HOST, 0, "job", b"") as server:  # noqa: SIM117 - the clients need it
        async with (
            await TcpStore.connect(HOST, server.port, "job", b"") as slow,
            await TcpStore.connect(HOST, server.port, "job", b"") as quick,
        ):
            watch = slow.watch("w")
            await slow.set("w/first", "1")
            assert await anext(watch) == WatchEvent("w/first", b"1")
            stuck = connection_of(slow)
            stuck.pause()
            for number in range(40):
                await quick.set(f"w/{number % 4}", bytes([number]) * (1 << 18))
                assert sum(c.unread for c in server.store.clients.values()) <= (3 << 20) + (1 << 19)
            assert "left 3 MiB unread" in caplog.text
            stuck.resume()
            await quick.set("w/last", "")
            last: dict[str, bytes | None] = {}
            while "w/last" not in last:
                key, value = await anext(watch)
                last[key] = value
            del last["w/last"]
            assert last == {f"w/{number % 4}": bytes([number]) * (1 << 18) for number in range(36, 40)}


async def test_who_never_reads_is_cut_off_alone(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_store_module, "MAX_SLOW", 2 << 20)
    async with await connect(server) as deaf, await connect(server) as other:
        await other.set("k", bytes(90_000))
        connection_of(deaf).pause()
        asks = [asyncio.ensure_future(deaf.get("k")) for _ in range(200)]
        while len(server.store.clients) == 2:
            assert await other.check(["k"])
        for ask in asks:
            ask.cancel()
        connection_of(deaf).resume()
        await asyncio.gather(*asks, return_exceptions=True)
