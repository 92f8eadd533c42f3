"""Links over shared memory refuse what would read or free the wrong memory."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aiodist.shm.arena import NONCE_BYTES, PAGE, Arena, Window, available
from aiodist.testing.channel_pair import turn_until
from aiodist.transport.base import FRAGMENT, Fold, Key
from aiodist.transport.mapped import ARENA_BYTES, BLOCKS, MappedLink
from aiodist.transport.receiving import Receiver
from aiodist.transport.sending import Sender
from aiodist.wire.frame import Type, pack

pytestmark = pytest.mark.skipif(not available(), reason="needs memfd (Linux)")

KEY = Key(1, 0, 0, 0)


def link_and_socket(*, sends: bool) -> tuple[MappedLink, socket.socket]:
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    arena = Arena(ARENA_BYTES, bytes(NONCE_BYTES))
    memory: Arena | Window = arena
    if not sends:
        memory = Window(arena.fd, arena.nbytes)
        arena.close()
    else:
        arena.close_fd()
    return MappedLink(asyncio.get_running_loop(), mine, memory), theirs


@pytest.mark.parametrize(
    ("word", "nbytes"),
    [
        (0, FRAGMENT),
        (PAGE + 1, FRAGMENT),
        (PAGE + BLOCKS * FRAGMENT, FRAGMENT),
        (1 << 63, FRAGMENT),
        (PAGE, FRAGMENT + 16),
    ],
)
async def test_a_fragment_outside_the_blocks_is_refused(word: int, nbytes: int) -> None:
    link, theirs = link_and_socket(sends=False)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    receiver = Receiver(0, lambda *_: None, lambda rank, goodbye, cause: ended.set_result(str(cause)))
    receiver.recv(KEY, FRAGMENT * 4, Fold(lambda fragment, offset: None), lambda: None)
    receiver.attach(link)
    theirs.send(pack(Type.MAPPED, *KEY, nbytes=nbytes, total=FRAGMENT * 4, word=word))
    assert (await ended).startswith("protocol error: a fragment of")
    theirs.close()


@pytest.mark.parametrize("blocks", [0, 1, 1 << 60])
async def test_a_block_that_is_not_out_cannot_come_back(blocks: int) -> None:
    link, theirs = link_and_socket(sends=True)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    sender = Sender(0, lambda rank: None, lambda rank, goodbye, cause: ended.set_result(str(cause)))
    sender.attach(link)
    theirs.send(pack(Type.RELEASE, word=blocks))
    assert (await ended).startswith("protocol error: blocks")
    theirs.close()


async def test_a_sender_out_of_blocks_waits_for_them() -> None:
    link, theirs = link_and_socket(sends=True)
    sender = Sender(0, lambda rank: None, lambda rank, goodbye, cause: None)
    sender.attach(link)
    data = bytes(i % 251 for i in range(FRAGMENT)) * (BLOCKS + 2)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert not sender.send(KEY, bytes(32), memoryview(data), lambda: done.set_result(None))
    theirs.send(pack(Type.READY, *KEY, total=len(data)))
    await turn_until(lambda: not link.room)
    assert not done.done()
    theirs.send(pack(Type.RELEASE, word=0b101))
    await done
    sender.kill()
    theirs.close()
