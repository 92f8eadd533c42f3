"""A store that a framework's process hosts for its ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, closing

import pytest

from aiodist.base.environment import split_address
from aiodist.base.errors import AuthenticationError, RendezvousError
from aiodist.integrations.hosted import Host
from aiodist.net.secure import SecureSocket
from aiodist.net.sockets import connect
from aiodist.rendezvous import TcpStore
from aiodist.rendezvous import server as server_module
from tests.rendezvous.meeting import rendezvous
from tests.support.store_client import socket_of


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIODIST_HOST", "127.0.0.1")


async def test_ranks_meet_where_it_is_and_nobody_else() -> None:
    with closing(Host.start()) as host, closing(Host.start()) as other:
        place = host.place
        assert place.secret != other.place.secret and len(place.secret) >= 32
        assert place.secret not in repr(place)

        async def rank(number: int) -> bytes:
            environ = place.environ(number, 3)
            meeting = await rendezvous("env://", timeout=30, environ=environ, secret=place.secret.encode())
            await stack.enter_async_context(meeting)
            return b"".join(await meeting.store.gather("g", 3, meeting.rank, b"%d" % meeting.rank))

        async with AsyncExitStack() as stack:
            assert await asyncio.gather(*map(rank, range(3))) == [b"012"] * 3
        with pytest.raises(AuthenticationError):
            environ = place.environ(0, 3)
            await rendezvous("env://", timeout=30, environ=environ, secret=other.place.secret.encode())


async def test_it_uses_tls_where_the_variables_say_so(
    certificates: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients come over TCP, as from another host."""
    monkeypatch.setattr(server_module, "listen_local", lambda host, port: None)
    ours = certificates("ours")
    for name, path in ours.items():
        monkeypatch.setenv(name, path)
    with closing(Host.start()) as host:
        place = host.place
        environ = {**place.environ(0, 1), **ours}
        async with await rendezvous(
            "env://", timeout=30, environ=environ, secret=place.secret.encode()
        ) as met:
            assert isinstance(met.store, TcpStore)
            assert isinstance(socket_of(met.store), SecureSocket)
            await met.store.set("key", b"value")
        with pytest.raises(AuthenticationError, match="TLS"):
            await TcpStore.connect(*split_address(place.address), place.job, place.secret.encode(), 10)


async def test_it_listens_until_it_is_closed() -> None:
    host = Host.start()
    address = split_address(host.place.address, "the store")
    (await connect(*address)).close()
    host.close()
    host.close()
    with pytest.raises(ConnectionRefusedError):
        await connect(*address)


def test_an_address_of_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIODIST_HOST", "192.0.2.7")
    with pytest.raises(RendezvousError, match="not an address of this host"):
        Host.start()
