"""Both ends of a connection open it with the same object, in pieces of any size."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from aiodist.base.errors import AuthenticationError
from aiodist.net.opening import HungUp, Opening
from aiodist.net.sealed import SealedSocket
from aiodist.net.wire.handshake import Handshake, Identity, Purpose

HERE, THERE = Identity("job", Purpose.data, 0), Identity("job", Purpose.data, 1)
Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture
def far() -> Iterator[Sockets]:
    """A connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
    with one, two:
        for sock in (one, two):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield one, two


@pytest.fixture
def near() -> Iterator[Sockets]:
    """A connection over a Unix socket."""
    one, two = socket.socketpair()
    with one, two:
        one.setblocking(False)
        two.setblocking(False)
        yield one, two


def both(sockets: Sockets, secrets: tuple[bytes, bytes] = (b"secret", b"secret")) -> tuple[Opening, Opening]:
    client = Handshake.client(HERE, secrets[0], b"a" * 16)
    server = Handshake.server(THERE, secrets[1], b"b" * 16)
    return Opening(sockets[0], client, None, sockets[0].send), Opening(
        sockets[1], server, None, sockets[1].send
    )


def shake(client: Opening, server: Opening) -> None:
    for _ in range(1000):
        if client.done and server.done:
            return
        for end in (client, server):
            if not end.done:
                end.advance()
    raise AssertionError("the handshake has no end")


def test_what_follows_over_tcp_is_authenticated(far: Sockets) -> None:
    client, server = both(far)
    shake(client, server)
    assert client.heard and server.heard
    assert isinstance(client.sock, SealedSocket) and isinstance(server.sock, SealedSocket)
    assert client.sock.send(b"hello") == 5
    assert server.sock.recv(100) == b"hello"


def test_what_follows_on_this_host_is_not(near: Sockets) -> None:
    client, server = both(near)
    shake(client, server)
    assert (client.sock, server.sock) == near


def test_what_came_behind_the_handshake_is_left_over(near: Sockets) -> None:
    client, server = both(near)
    while not server.done:
        client.advance()
        server.advance()
    near[1].send(b"behind it")
    while not client.done:
        client.advance()
    assert client.leftover == b"behind it"


def test_who_is_refused_hears_why(near: Sockets) -> None:
    client, server = both(near, (b"secret", b"another"))
    with pytest.raises(AuthenticationError, match="rank 0 has another secret"):
        shake(client, server)
    with pytest.raises(AuthenticationError, match="rank 1 has another secret"):
        client.advance()


def test_an_end_before_anything_was_said(near: Sockets) -> None:
    _, server = both(near)
    assert not server.advance()
    near[0].close()
    with pytest.raises(HungUp):
        server.advance()
    assert not server.heard
