"""A member that writes and never reads: what answers its frames does not pile up with its victim."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aiodist.net.wire.frame import HEADER, Type, pack, parse
from aiodist.transport.base import EAGER_MESSAGE, FRAGMENT
from aiodist.transport.mapped import BLOCKS, MappedLink
from aiodist.transport.receiving import Incoming
from aiodist.transport.shm.arena import available
from aiodist.transport.stream import StreamLink
from tests.helpers import BLOCKS_AT, shared
from tests.support.channel_pair import turn_until

GONE = 7  # a group that was closed: what still comes for it is read and dropped
ROUNDS = 20_000


class Victim:
    """A receiver on one end of a socket pair, whose other end the test holds."""

    def __init__(self, link: StreamLink, theirs: socket.socket) -> None:
        self.ends: list[str] = []
        self.link = link
        self.theirs = theirs
        self.receiver = Incoming(
            1, lambda *_: None, lambda rank, goodbye, cause: self.ends.append(str(cause))
        )
        self.receiver.retire(GONE)
        self.receiver.attach(link)

    async def take(self, frames: bytes) -> None:
        """Write frames, and have them all read."""
        await asyncio.get_running_loop().sock_sendall(self.theirs, frames)
        for _ in range(3):
            self.link.poll()

    def waits(self) -> int:
        """Bytes that wait for the peer in the memory of the victim."""
        return self.link._out.unread


@asynccontextmanager
async def victim(mapped: bool) -> AsyncIterator[Victim]:
    mine, theirs = socket.socketpair()
    for sock in (mine, theirs):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        if mapped:
            segment, peer = shared()
            stack.callback(segment.close)
            stack.callback(peer.close)
            link: StreamLink = MappedLink(loop, mine, segment, peer, dialed=False)
        else:
            link = StreamLink(loop, mine)
        one = Victim(link, theirs)
        try:
            if mapped:
                await one.take(pack(Type.BLOCKS, word=BLOCKS_AT))
            yield one
        finally:
            one.receiver.kill()
            theirs.close()


def fragment(block: int) -> bytes:
    return pack(Type.MAPPED, GONE, nbytes=FRAGMENT, total=FRAGMENT, word=BLOCKS_AT + block * FRAGMENT)


@pytest.mark.skipif(not available(), reason="needs memfd (Linux)")
async def test_blocks_that_are_used_before_they_were_given_back() -> None:
    async with victim(mapped=True) as one:
        for number in range(ROUNDS):
            await one.take(fragment(number % BLOCKS))
            assert one.waits() <= HEADER
            if one.ends:
                break
        assert "was not given back yet" in one.ends[0]


@pytest.mark.skipif(not available(), reason="needs memfd (Linux)")
async def test_blocks_come_back_once_the_peer_reads() -> None:
    async with victim(mapped=True) as one:
        number = 0
        while not one.waits():
            await one.take(fragment(number % BLOCKS))
            number += 1
        for block in range(BLOCKS // 2):  # these can have been read of by now
            await one.take(fragment((number + block) % BLOCKS))
        freed = 0
        while freed < number + BLOCKS // 2 and not one.ends:
            data = await asyncio.get_running_loop().sock_recv(one.theirs, HEADER)
            freed += parse(data).word.bit_count()
        assert not one.ends


async def test_credit_waits_until_the_peer_reads() -> None:
    """It may send on, in groups that were closed, for as long as it has credit: here it counts for itself."""
    eager = pack(Type.EAGER, GONE, nbytes=EAGER_MESSAGE, total=EAGER_MESSAGE) + bytes(EAGER_MESSAGE)
    async with victim(mapped=False) as one:
        for _ in range(ROUNDS):
            await one.take(eager)
            assert one.waits() <= HEADER
            if one.ends:
                break
        assert "more than 1048576 bytes were sent before they were asked for" in one.ends[0]


async def test_credit_comes_once_the_peer_reads() -> None:
    eager = pack(Type.EAGER, GONE, nbytes=EAGER_MESSAGE, total=EAGER_MESSAGE) + bytes(EAGER_MESSAGE)
    size = HEADER + EAGER_MESSAGE
    async with victim(mapped=False) as one:
        sent = credit = 0
        while not one.waits():
            await one.take(eager)
            sent += size
        for _ in range(40):
            await one.take(eager)
            sent += size
        while credit < sent - (1 << 18):
            credit += parse(await asyncio.get_running_loop().sock_recv(one.theirs, HEADER)).total
        await turn_until(lambda: not one.waits())
        assert not one.ends
