"""Members that connect as ranks that there are not, before they are known, or again and again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aiodist.net.wire.handshake import NONCE_BYTES, Handshake, Identity, Purpose
from aiodist.transport import ControlLink, Into, Key, SocketEndpoint
from aiodist.transport.endpoint import CONTROL_LINKS
from tests.support.channel_pair import Recorder, turn_until
from tests.support.strangers import shaking_hands

SECRET = b"secret"


@asynccontextmanager
async def ranks(count: int = 2) -> AsyncIterator[list[SocketEndpoint]]:
    made = [await SocketEndpoint.open(rank=r, job="job", secret=SECRET, mode="tcp") for r in range(count)]
    for one in made:
        one.observer = Recorder()
    try:
        yield made
    finally:
        await asyncio.gather(*(one.aclose() for one in made))


async def connect(victim: SocketEndpoint, rank: int, nonce: bytes, purpose: Purpose) -> socket.socket:
    """A connection of a process that knows the secret; the handshake is over."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, tuple(victim.card["tcp"]))
    mine = Identity("job", purpose, rank, nonce)
    handshake = Handshake.client(mine, SECRET, bytes(NONCE_BYTES))
    while True:
        if data := handshake.data_to_send():
            await loop.sock_sendall(sock, data)
        if handshake.done:
            return sock
        handshake.receive(await loop.sock_recv(sock, 4096))


async def hung_up(sock: socket.socket) -> None:
    with sock:
        try:
            assert await asyncio.get_running_loop().sock_recv(sock, 100) == b""
        except ConnectionError:
            pass


@pytest.mark.parametrize("purpose", [Purpose.data, Purpose.control])
@pytest.mark.parametrize("rank", [2, 1_000_000, (1 << 31) - 1, -1])
async def test_ranks_that_there_are_not(
    rank: int, purpose: Purpose, caplog: pytest.LogCaptureFixture
) -> None:
    """Each would leave a channel behind, for as long as the process lives."""
    async with ranks() as (victim, other):
        victim.introduce({0: victim.card, 1: other.card})
        await hung_up(await connect(victim, rank, other.card["nonce"], purpose))
        assert set(victim._peers) <= {0, 1} and not victim.statistics()["control"]
    assert f"it is not the rank {rank} of this job" in caplog.text


async def test_who_comes_before_it_is_known_has_to_be_who_it_says() -> None:
    """An older process of rank 1, say, which has the address from elsewhere, does not take its place."""
    async with ranks() as (victim, genuine):
        early = await connect(victim, 1, b"o" * 16, Purpose.data)
        genuine.introduce({0: victim.card, 1: genuine.card})
        genuine.outgoing(0).send(Key(1, 0, 0, 0), bytes(32), memoryview(b"hello"), lambda: None)
        into = bytearray(5)
        here = asyncio.get_running_loop().create_future()
        assert not victim.incoming(1).recv(
            Key(1, 0, 0, 0), 5, Into(memoryview(into)), lambda: here.set_result(None)
        )
        await turn_until(lambda: shaking_hands(victim) == 2)
        victim.introduce({0: victim.card, 1: genuine.card})
        await here
        assert into == b"hello"
        await hung_up(early)
        assert isinstance(victim.observer, Recorder) and not victim.observer.losses


async def test_control_links_without_end(caplog: pytest.LogCaptureFixture) -> None:
    """Each takes a descriptor. The first stay."""
    async with ranks() as (victim, other):
        victim.introduce({0: victim.card, 1: other.card})
        came: list[ControlLink] = []
        victim.on_control = lambda rank, link: came.append(link)
        nonce = other.card["nonce"]
        stay = [await connect(victim, 1, nonce, Purpose.control) for _ in range(CONTROL_LINKS)]
        await turn_until(lambda: len(came) == CONTROL_LINKS)
        for _ in range(50):
            await hung_up(await connect(victim, 1, nonce, Purpose.control))
        assert victim.statistics()["control"] == CONTROL_LINKS
        stay.pop().close()
        came[-1].on_message = lambda message: None
        await turn_until(lambda: victim.statistics()["control"] < CONTROL_LINKS)
        stay.append(await connect(victim, 1, nonce, Purpose.control))
        await turn_until(lambda: len(came) == CONTROL_LINKS + 1)
        for sock in stay:
            sock.close()
    assert f"rank 1 has {CONTROL_LINKS} control links already" in caplog.text
