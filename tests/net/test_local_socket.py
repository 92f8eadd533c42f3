"""The local socket of a store on this host, and ends of connections that nobody reads."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import pytest

from aiodist.base.errors import AuthenticationError, RendezvousError
from aiodist.net import local_socket
from aiodist.rendezvous import StoreServer, TcpStore
from aiodist.rendezvous import connection as connection_module
from tests.ports import needs_ipv6
from tests.support.store_client import connection_of, socket_of

HOST = "127.0.0.1"
linux = pytest.mark.skipif(sys.platform != "linux", reason="abstract Unix addresses are Linux's")


def family(store: TcpStore) -> int:
    return socket_of(store).family


@linux
@pytest.mark.parametrize("host", [HOST, "::1"])
async def test_a_store_on_this_host_is_reached_by_its_local_socket(host: str) -> None:
    if host == "::1":
        needs_ipv6()
    async with await StoreServer.start(host, 0, "job", b"secret") as server:
        async with await TcpStore.connect(host, server.port, "job", b"secret", 10) as store:
            assert family(store) == socket.AF_UNIX
            assert store.address == host
        with pytest.raises(AuthenticationError, match="another secret"):
            await TcpStore.connect(host, server.port, "job", b"wrong", 10)


@linux
async def test_another_users_socket_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with await StoreServer.start(HOST, 0, "job", b"") as server:
        monkeypatch.setattr(local_socket, "credentials", lambda sock: (1, os.geteuid() + 1, 1))
        async with await TcpStore.connect(HOST, server.port, "job", b"", 10) as store:
            assert family(store) == socket.AF_INET
            assert store.address == HOST


async def test_without_a_local_socket_there_is_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "elsewhere")
    async with (
        await StoreServer.start(HOST, 0, "job", b"") as server,
        await TcpStore.connect(HOST, server.port, "job", b"", 10) as store,
    ):
        assert family(store) == socket.AF_INET
        assert await store.add("n", 1) == 1


@linux
async def test_an_address_that_is_taken_does_no_harm() -> None:
    with socket.socket(socket.AF_UNIX) as squatter, socket.create_server((HOST, 0)) as place:
        port = place.getsockname()[1]
        squatter.bind(local_socket.local_address(HOST, port))
        assert local_socket.listen_local(HOST, port) is None


@linux
async def test_a_closed_store_leaves_no_address_behind() -> None:
    async with await StoreServer.start(HOST, 0, "job", b"") as server:
        pass
    again = local_socket.listen_local(HOST, server.port)
    assert again is not None
    again.close()


async def test_who_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers wait for their reader, in order, up to a bound."""
    monkeypatch.setattr(connection_module, "MAX_UNREAD", 3 << 20)
    async with (
        await StoreServer.start(HOST, 0, "job", b"") as server,
        await TcpStore.connect(HOST, server.port, "job", b"", 10) as store,
    ):
        large = os.urandom(1 << 20)
        await store.set("large", large)
        assert await asyncio.gather(*(store.get("large") for _ in range(2))) == [large] * 2
        connection = connection_of(store)
        connection.pause()
        [served] = server.store.clients.values()
        for _ in range(8):
            served.write(large)
        assert served._ended
        connection.abort()
        assert await store.get("large") == large


async def test_last_words_are_read_though_writing_failed() -> None:
    """The store closes, and says why, while its client is about to ask something."""
    async with await StoreServer.start(HOST, 0, "job", b"") as server:
        store = await TcpStore.connect(HOST, server.port, "job", b"", 10)
        await store.set("k", "v")
        connection_of(store).pause()
        await server.aclose()
        with pytest.raises(RendezvousError, match="is gone: its host closed it"):
            await store.set("k", "v")
        await store.aclose()
