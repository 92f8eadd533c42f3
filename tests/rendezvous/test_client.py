"""The client and the server over real connections: unauthenticated peers, broken connections, deaths."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from aiodist.base.errors import AuthenticationError, RendezvousError, RendezvousTimeout, UsageError
from aiodist.net import admission
from aiodist.net.sockets import describe, interface_address, port_owner
from aiodist.net.wire.handshake import Handshake, Identity, Purpose
from aiodist.rendezvous import PrefixStore, StoreServer, TcpStore, WatchEvent
from aiodist.rendezvous import client as client_module
from aiodist.rendezvous.connection import HANDSHAKE_SECONDS, StoreConnection, _keep_alive
from aiodist.testing.conformance_store import arrived
from tests.rendezvous.conftest import Clock
from tests.support.store_client import connection_of

HOST = "127.0.0.1"


@pytest.fixture
async def server() -> AsyncIterator[StoreServer]:
    async with await StoreServer.start(HOST, 0, "job", b"secret") as server:
        yield server


async def connect(server: StoreServer, rank: int = 1, timeout: float = 10.0) -> TcpStore:
    return await TcpStore.connect(HOST, server.port, "job", b"secret", timeout, rank=rank)


def cut(server: StoreServer) -> None:
    """End every connection, as a network would."""
    for connection in server.store.clients.values():
        connection.abort()


# Finding each other.


async def test_an_unreachable_store_is_named_with_the_reason(
    port: int, run_out_of_time: Callable[[], None]
) -> None:
    run_out_of_time()
    said = rf"^cannot reach the store at {HOST}:{port} \(Connection refused\) after 60 s\. See whether"
    with pytest.raises(RendezvousTimeout, match=said):
        await TcpStore.connect(HOST, port, "job", b"", 60)


async def test_who_does_not_answer_as_a_store_is_named(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    def deaf(connection: StoreConnection) -> None:
        attempts.append(None)
        real(connection)
        clock.forward(HANDSHAKE_SECONDS if len(attempts) == 1 else 60)

    attempts: list[None] = []
    real = StoreConnection.start
    monkeypatch.setattr(StoreConnection, "start", deaf)
    loop = asyncio.get_running_loop()
    async with await loop.create_server(asyncio.Protocol, HOST, 0) as other:
        port = other.sockets[0].getsockname()[1]
        said = r"\(it accepts connections, but does not answer as a store: no handshake within 5 s\b"
        with pytest.raises(RendezvousTimeout, match=said):
            await TcpStore.connect(HOST, port, "job", b"", 30)


async def test_who_had_no_time_for_a_handshake_says_so(
    server: StoreServer, run_out_of_time: Callable[[], None]
) -> None:
    """The store is alright, and nothing else is said of it."""
    run_out_of_time()
    said = (
        rf"^cannot reach the store at {HOST}:{server.port} \(the time was over [^(]* after it had accepted a "
        r"connection, before any answer\) after 60 s\."
    )
    with pytest.raises(RendezvousTimeout, match=said):
        await connect(server, timeout=60)


async def test_what_was_tried_is_said_whole(port: int) -> None:
    store = TcpStore(HOST, port, Identity("job", Purpose.store), b"", 60, None)
    assert store._progress() == "no answer"
    store._cause = "Connection refused"
    assert store._progress() == "Connection refused"
    store._accepted = asyncio.get_running_loop().time() - 3
    said = r"Connection refused; then the time was over [\d.]+ s after it had accepted .*"
    assert re.fullmatch(said, store._progress())


async def test_a_store_that_starts_late_is_found(port: int) -> None:
    connecting = asyncio.ensure_future(TcpStore.connect(HOST, port, "job", b"", 10))
    await asyncio.sleep(0)
    async with await StoreServer.start(HOST, port, "job", b""), await connecting as store:
        assert store.address == HOST


async def test_a_port_in_use_is_named_with_its_owner(server: StoreServer) -> None:
    said = rf"^port {server.port} on {HOST} is in use by pid {os.getpid()} \("
    with pytest.raises(RendezvousError, match=said) as caught:
        await StoreServer.start(HOST, server.port, "job", b"")
    assert "MASTER_PORT" in caught.value.hint
    assert port_owner(server.port).startswith(f"pid {os.getpid()} ")


async def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(RendezvousError, match=r"192.0.2.1: it is not an address of this host"):
        await StoreServer.start("192.0.2.1", 0, "job", b"")


async def test_the_server_listens_on_its_address_only(
    server: StoreServer, run_out_of_time: Callable[[], None]
) -> None:
    run_out_of_time()
    assert server.host == HOST
    with pytest.raises(RendezvousTimeout, match="Connection refused"):
        await TcpStore.connect("127.0.0.2", server.port, "job", b"secret", 60)


# Strangers.


@pytest.mark.parametrize(
    ("job", "secret", "said"),
    [
        ("other", b"secret", "the peer says: \"the store belongs to job 'job', this process to 'other'\""),
        ("job", b"wrong", 'the peer says: "the store has another secret than this process"'),
        ("job", b"", 'the peer says: "the store has another secret than this process"'),
    ],
)
async def test_an_unauthenticated_peer_is_refused(
    server: StoreServer, job: str, secret: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "aiodist.store"):
        with pytest.raises(AuthenticationError) as caught:
            await TcpStore.connect(HOST, server.port, job, secret, 10, rank=3)
        async with await connect(server) as store:
            await store.set("still", "served")
    assert caught.value.message == said
    assert "rank 3" in caplog.text


class OtherVersion(asyncio.Protocol):
    """A server to whom every client speaks another protocol."""

    def __init__(self) -> None:
        self.handshake = Handshake.server(Identity("job", Purpose.store), b"secret", bytes(16))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        hello = data[:8] + b"\x03" + data[9:]
        with pytest.raises(AuthenticationError, match="rank 1 speaks protocol 3, this process 2"):
            self.handshake.receive(hello)
        self.transport.write(self.handshake.data_to_send())
        self.transport.close()


async def test_mixed_versions_are_refused_in_one_line() -> None:
    loop = asyncio.get_running_loop()
    async with await loop.create_server(OtherVersion, HOST, 0) as between:
        port = between.sockets[0].getsockname()[1]
        with pytest.raises(AuthenticationError) as caught:
            await TcpStore.connect(HOST, port, "job", b"secret", 10, rank=1)
    assert str(caught.value) == (
        'the peer says: "the store speaks protocol 2, this process 3". Install the same aiodist on every host'
    )


async def test_noise_and_silence_disturb_nobody(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await connect(server) as store:
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b"AIODIST" + b"\xff" * 5, b"\0" + os.urandom(99_999)):
            with monkeypatch.context() as patched:
                if not noise:  # whoever says nothing is sent away
                    patched.setattr(admission, "PATIENCE", 0.01)
                reader, writer = await asyncio.open_connection(HOST, server.port)
                writer.write(noise)
                with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                    await reader.readexactly(1)
                writer.close()
        await store.set("k", "v")
        assert not server._unauthenticated


async def test_a_client_that_breaks_the_protocol_is_sent_away(server: StoreServer) -> None:
    async with await connect(server) as good:
        bad = await connect(server)
        connection_of(bad).write(b"\xff\xff\xff\xff")
        with pytest.raises(RendezvousError):
            await bad.get("never", timeout=0.1)
        await bad.aclose()
        await good.set("k", "v")


async def test_what_is_too_large_is_refused_alone(server: StoreServer) -> None:
    async with await connect(server) as store:
        half = bytes(5 << 20)
        with pytest.raises(UsageError, match="split it"):
            await store.multi_set(["a", "b"], [half, half])
        await store.set("a", half)
        await store.set("b", half)
        with pytest.raises(UsageError, match="Ask for fewer keys"):
            await store.multi_get(["a", "b"])
        assert await store.get("b") == half


# Broken connections.


async def test_a_broken_connection_is_replaced_and_nothing_happens_twice(server: StoreServer) -> None:
    async with await connect(server) as one, await connect(server) as two:
        waits = asyncio.ensure_future(one.get("late"))
        meets = asyncio.ensure_future(one.barrier("b", 2, 0))
        await arrived(one)
        adds = [asyncio.ensure_future(one.add("n", 1)) for _ in range(200)]
        for number in range(5):
            await two.add("n", 1000)
            cut(server)
            adds += [asyncio.ensure_future(one.add("n", 1)) for _ in range(number)]
        await two.set("late", "at last")
        await two.barrier("b", 2, 1)
        assert await waits == b"at last"
        await meets
        await asyncio.gather(*adds)
        assert await two.get("n") == b"5210"


async def test_a_watch_survives_a_broken_connection(server: StoreServer) -> None:
    async with await connect(server) as one, await connect(server) as two:
        await two.multi_set(["w/a", "w/b"], ["1", "1"])
        watch = one.watch("w/")
        assert [await anext(watch), await anext(watch)] == [WatchEvent("w/a", b"1"), WatchEvent("w/b", b"1")]
        [connection] = [c for k, c in server.store.clients.items() if k == one._identity.card]
        connection.abort()
        await two.delete_key("w/a")
        await two.set("w/c", "2")
        events = {await anext(watch), await anext(watch)}
        assert events == {WatchEvent("w/a", None), WatchEvent("w/c", b"2")}
        await watch.aclose()


async def test_a_store_that_dies_fails_what_waits(
    server: StoreServer, run_out_of_time: Callable[[], None]
) -> None:
    store = await connect(server)
    waits = asyncio.ensure_future(store.get("never"))
    await arrived(store)
    assert server._server is not None
    server._server.close()
    run_out_of_time()
    cut(server)
    with pytest.raises(
        RendezvousError, match=r"^lost the connection to the store: cannot reach .* \(Connection refused\)"
    ):
        await waits
    with pytest.raises(RendezvousError, match="lost the connection to the store"):
        await store.set("k", "v")
    await store.aclose()


async def test_a_store_that_refuses_connections_is_given_up_sooner(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RECONNECT_SECONDS", 1e6)
    monkeypatch.setattr(client_module, "REFUSED_SECONDS", 0.05)
    store = await connect(server)
    waits = asyncio.ensure_future(store.get("never"))
    await arrived(store)
    assert server._server is not None
    server._server.close()
    cut(server)
    with pytest.raises(RendezvousError, match=r"\(Connection refused\) after 0.05 s"):
        await waits
    await store.aclose()


async def test_a_store_that_was_given_up_is_reached_again(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a new client: the store may have forgotten the old one, and knows nothing that it waits for."""
    monkeypatch.setattr(client_module, "RECONNECT_SECONDS", 1e-6)
    store = await connect(server)
    await store.reopen()
    await store.set("k", "before")
    waits = asyncio.ensure_future(store.get("never"))
    await arrived(store)
    cut(server)
    with pytest.raises(RendezvousError, match="lost the connection to the store"):
        await waits
    with pytest.raises(RendezvousError, match="lost the connection to the store"):
        await store.get("k")
    await store.reopen()
    assert await store.get("k") == b"before"
    assert await store.add("n", 3) == 3
    await store.aclose()
    with pytest.raises(RendezvousError, match="the store is closed"):
        await store.reopen()


async def test_a_store_that_is_still_away_is_not_reached_again(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RECONNECT_SECONDS", 1e-6)
    store = await connect(server)
    waits = asyncio.ensure_future(store.get("never"))
    await arrived(store)
    assert server._server is not None
    server._server.close()
    cut(server)
    with pytest.raises(RendezvousError, match="lost the connection to the store"):
        await waits
    with pytest.raises(RendezvousTimeout, match="Connection refused"):
        await store.reopen()
    with pytest.raises(RendezvousError, match="lost the connection to the store"):
        await store.get("k")
    await store.aclose()


async def test_a_store_that_is_closed_says_so() -> None:
    async with await StoreServer.start(HOST, 0, "job", b"secret") as server:
        store = await connect(server)
        waits = asyncio.ensure_future(store.get("never"))
        await arrived(store)
    with pytest.raises(RendezvousError, match="is gone: its host closed it"):
        await waits
    await store.aclose()


async def test_a_store_that_is_restarted_is_another(port: int) -> None:
    async with await StoreServer.start(HOST, port, "job", b"") as first:
        store = await TcpStore.connect(HOST, port, "job", b"", 10)
        waits = asyncio.ensure_future(store.get("never"))
        await arrived(store)
        assert first._server is not None
        first._server.close()
        cut(first)
        async with await StoreServer.start(HOST, port, "job", b""):
            with pytest.raises(RendezvousError, match="is another one than before"):
                await waits
            await store.aclose()


async def test_a_silent_store_is_a_timeout(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_GRACE", 0.0)
    async with await connect(server) as store:
        monkeypatch.setattr(server.store, "_handle", lambda event: None)
        with pytest.raises(RendezvousTimeout, match=r"gave no answer to multi_get within 0.05 s"):
            await store.get("k", timeout=0.05)
        monkeypatch.undo()


async def test_the_host_lingers_until_all_have_left(server: StoreServer) -> None:
    one, two = await connect(server), await connect(server)
    closing = asyncio.ensure_future(server.aclose(linger=10))
    await one.set("k", "v")
    await one.aclose()
    assert await two.get("k") == b"v"
    assert not closing.done()
    await two.aclose()
    await closing


async def test_the_host_lingers_no_longer_than_that(server: StoreServer) -> None:
    store = await connect(server)
    await server.aclose(linger=0.02)
    with pytest.raises(RendezvousError, match="its host closed it"):
        await store.set("k", "v")
    await store.aclose()


async def test_a_round_that_is_never_complete_names_who_is_missing(server: StoreServer) -> None:
    async with await connect(server, 0) as one, await connect(server, 2) as two:
        calls = (store.gather("cards", 4, rank, b"card", 0.1) for store, rank in ((one, 0), (two, 2)))
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, RendezvousTimeout)
            assert error.missing == (1, 3)
            assert str(error).startswith("ranks 1 and 3 did not come to 'cards' within 0.1 s")


async def test_a_wait_in_vain_names_the_keys_as_they_were_asked_for(server: StoreServer) -> None:
    async with await connect(server) as store:
        view = PrefixStore("mine", store)
        await view.set("here", "x")
        for call, missing in (
            (view.get("a", 0.05), ("a",)),
            (view.wait(["a", "here", "b", "a"], 0.05), ("a", "b")),
            (view.multi_get(["here", "c"], 0.05), ("c",)),
            (store.get("a", 0.05), ("a",)),
        ):
            with pytest.raises(RendezvousTimeout, match="no process set") as info:
                await call
            assert info.value.missing == missing and info.value.missing_ranks == ()


async def test_many_clients_meet(server: StoreServer) -> None:
    count = 200
    stores = await asyncio.gather(*(connect(server, rank) for rank in range(count)))
    calls = (store.gather("cards", count, rank, b"card %d" % rank) for rank, store in enumerate(stores))
    assert all(cards == [b"card %d" % r for r in range(count)] for cards in await asyncio.gather(*calls))
    await asyncio.gather(*(store.aclose() for store in stores))


async def test_a_store_belongs_to_its_loop(server: StoreServer) -> None:
    async with await connect(server) as store:

        def elsewhere() -> None:
            with asyncio.Runner() as runner, pytest.raises(UsageError, match="another event loop"):
                runner.run(store.get("k"))

        await asyncio.to_thread(elsewhere)


# Words and addresses.


def test_an_interface_has_an_address() -> None:
    assert interface_address("lo") == HOST
    with pytest.raises(UsageError, match="no network interface 'nope0'"):
        interface_address("nope0")


def test_errors_are_described_without_numbers() -> None:
    assert describe(ConnectionRefusedError(111, "Connect call failed ('::1', 5)")) == "Connection refused"
    assert describe(socket.gaierror(-2, "Name or service not known")) == "Name or service not known"
    assert describe(UsageError("message", hint="hint")) == "message"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the options have other names")
def test_a_host_that_vanishes_is_noticed_whatever_was_under_way() -> None:
    """By keepalives where all is acknowledged; else there are none, and the kernel would try for long."""
    with (
        socket.create_server((HOST, 0)) as listening,
        socket.create_connection(listening.getsockname()) as one,
    ):
        _keep_alive(one)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle, between, times = (one.getsockopt(socket.IPPROTO_TCP, name) for name in names)
        assert idle + between * times == 25
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000


async def test_calls_that_expire_are_found_by_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_GRACE", 0.0)
    async with (
        await StoreServer.start(HOST, 0, "job", b"") as server,
        await TcpStore.connect(HOST, server.port, "job", b"", 10) as store,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(server.store, "_handle", lambda event: None)
            late = asyncio.ensure_future(store.get("k", timeout=0.04))
            await asyncio.sleep(0)
            soon = asyncio.ensure_future(store.get("k", timeout=0.01))
            errors = await asyncio.gather(late, soon, return_exceptions=True)
        assert ["within 0.04 s" in str(errors[0]), "within 0.01 s" in str(errors[1])] == [True, True]
        assert await store.add("n", 1) == 1
        assert not store._pending
