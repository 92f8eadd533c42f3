"""Links over shared memory refuse what would read or free the wrong memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from aiodist.net.wire.frame import HEADER, Type, pack, parse
from aiodist.transport.base import FRAGMENT, Fold, Key
from aiodist.transport.mapped import BLOCKS, MappedLink
from aiodist.transport.receiving import Incoming
from aiodist.transport.sending import Outgoing
from aiodist.transport.shm.arena import PAGE, available
from tests.helpers import BLOCKS_AT, shared
from tests.support.channel_pair import turn_until

pytestmark = pytest.mark.skipif(not available(), reason="needs memfd (Linux)")

KEY = Key(1, 0, 0, 0)


class Made:
    """A link, the socket at its other end, and the memory."""

    def __init__(self, sends: bool) -> None:
        mine, self.theirs = socket.socketpair()
        mine.setblocking(False)
        self.segment, self.peer = shared()
        self.link = MappedLink(asyncio.get_running_loop(), mine, self.segment, self.peer, dialed=sends)

    def close(self) -> None:
        self.link.kill()
        self.theirs.close()
        self.peer.close()
        self.segment.close()


@pytest.fixture
def make() -> Iterator[Callable[[bool], Made]]:
    made: list[Made] = []

    def one(sends: bool) -> Made:
        made.append(Made(sends))
        return made[-1]

    yield one
    for each in made:
        each.close()


def blocks(at: int = BLOCKS_AT) -> bytes:
    return pack(Type.BLOCKS, word=at)


async def refused(made: Made, *frames: bytes) -> str:
    """What a receiver says of these frames."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    receiver = Incoming(0, lambda *_: None, lambda rank, goodbye, cause: ended.set_result(str(cause)))
    receiver.recv(KEY, FRAGMENT * 4, Fold(lambda fragment, offset: None), lambda: None)
    receiver.attach(made.link)
    made.theirs.send(b"".join(frames))
    return await ended


@pytest.mark.parametrize(
    ("word", "nbytes"),
    [
        (0, FRAGMENT),
        (BLOCKS_AT + 1, FRAGMENT),
        (BLOCKS_AT - PAGE, FRAGMENT),
        (BLOCKS_AT + BLOCKS * FRAGMENT, FRAGMENT),
        (1 << 63, FRAGMENT),
        (BLOCKS_AT, FRAGMENT + 16),
    ],
)
async def test_a_fragment_outside_the_blocks_is_refused(
    make: Callable[[bool], Made], word: int, nbytes: int
) -> None:
    fragment = pack(Type.MAPPED, *KEY, nbytes=nbytes, total=FRAGMENT * 4, word=word)
    assert (await refused(make(False), blocks(), fragment)).startswith("protocol error: a fragment of")


async def test_a_fragment_before_the_blocks_is_refused(make: Callable[[bool], Made]) -> None:
    fragment = pack(Type.MAPPED, *KEY, nbytes=FRAGMENT, total=FRAGMENT * 4, word=BLOCKS_AT)
    assert (await refused(make(False), fragment)).startswith("protocol error: a fragment of")


@pytest.mark.parametrize("at", [0, 1, BLOCKS_AT + 1, BLOCKS_AT + 2 * PAGE, 1 << 63])
async def test_blocks_that_are_not_in_the_segment_are_refused(make: Callable[[bool], Made], at: int) -> None:
    assert (await refused(make(False), blocks(at))).startswith(f"protocol error: blocks at {at} of a segment")


async def test_blocks_do_not_move_while_one_is_out(make: Callable[[bool], Made]) -> None:
    fragment = pack(Type.MAPPED, *KEY, nbytes=FRAGMENT, total=FRAGMENT * 4, word=BLOCKS_AT)
    said = await refused(make(False), blocks(), blocks(), fragment, blocks())
    assert "while blocks are out" in said


def sender_of(made: Made) -> tuple[Outgoing, asyncio.Future[str]]:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    sender = Outgoing(0, lambda rank: None, lambda rank, goodbye, cause: ended.set_result(str(cause)))
    sender.attach(made.link)
    return sender, ended


async def test_a_block_cannot_come_back_before_blocks_are_taken(make: Callable[[bool], Made]) -> None:
    made = make(True)
    _, ended = sender_of(made)
    made.theirs.send(pack(Type.RELEASE, word=1))
    assert "and no block is out" in await ended


@pytest.mark.parametrize("word", [0, 2, 1 << 60])
async def test_a_block_that_is_not_out_cannot_come_back(make: Callable[[bool], Made], word: int) -> None:
    made = make(True)
    sender, ended = sender_of(made)
    sender.send(KEY, bytes(32), memoryview(bytes(FRAGMENT)), lambda: None)
    made.theirs.send(pack(Type.READY, *KEY, total=FRAGMENT))
    await turn_until(lambda: made.segment.heap.taken() > 0)
    made.theirs.send(pack(Type.RELEASE, word=word))
    assert (await ended).startswith("protocol error: blocks")


async def test_blocks_are_given_back_at_the_end_unless_the_peer_may_read_them(
    make: Callable[[bool], Made],
) -> None:
    for out in (0b0, 0b1):
        made = make(True)
        sender, _ = sender_of(made)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sender.send(KEY, bytes(32), memoryview(bytes(FRAGMENT)), partial(done.set_result, None))
        made.theirs.send(pack(Type.READY, *KEY, total=FRAGMENT))
        await done
        if not out:
            made.theirs.send(pack(Type.RELEASE, word=1))
            pool = made.link._pool
            await turn_until(lambda pool=pool: len(pool) == BLOCKS)  # type: ignore[misc]
        sender.kill()
        assert made.segment.heap.taken() == (BLOCKS * FRAGMENT if out else 0)


async def test_idle_blocks_are_given_to_others_and_taken_again(make: Callable[[bool], Made]) -> None:
    made = make(True)
    sender, ended = sender_of(made)
    idle: list[int] = []
    made.segment.on_idle = lambda: idle.append(made.segment.heap.taken())
    for seq in range(3):
        key = KEY._replace(seq=seq)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sender.send(key, bytes(32), memoryview(bytes(FRAGMENT)), partial(done.set_result, None))
        made.theirs.send(pack(Type.READY, *key, total=FRAGMENT))
        await done
        for holder in list(made.segment.holders):
            holder.reclaim()
        assert made.segment.heap.taken() == BLOCKS * FRAGMENT  # one is out
        made.theirs.send(pack(Type.RELEASE, word=1))
        await turn_until(lambda seq=seq: len(idle) > seq)  # type: ignore[misc]
        for holder in list(made.segment.holders):
            holder.reclaim()
        assert made.segment.heap.taken() == 0
    assert idle == [BLOCKS * FRAGMENT] * 3
    assert not made.segment.holders and not ended.done()


async def test_blocks_are_given_back_where_the_peer_is_gone_before_it_hears_of_them(
    make: Callable[[bool], Made],
) -> None:
    made = make(True)
    sender, ended = sender_of(made)
    sender.send(KEY, bytes(32), memoryview(bytes(FRAGMENT)), lambda: None)
    made.theirs.send(pack(Type.READY, *KEY, total=FRAGMENT))
    made.theirs.close()
    assert await ended
    assert made.segment.heap.taken() == 0
    assert not made.segment.holders


async def test_without_room_all_goes_over_the_socket(make: Callable[[bool], Made]) -> None:
    made = make(True)
    sender, _ = sender_of(made)
    made.segment.heap.take(2 * PAGE)
    data = bytes(i % 251 for i in range(FRAGMENT))
    sender.send(KEY, bytes(32), memoryview(data), lambda: None)
    made.theirs.send(pack(Type.READY, *KEY, total=FRAGMENT))
    made.theirs.setblocking(False)
    found = b""
    while not found.endswith(data):
        found += await asyncio.get_running_loop().sock_recv(made.theirs, 1 << 20)
    assert parse(found[: -len(data)][-HEADER:]).type == Type.DATA


async def test_a_sender_out_of_blocks_waits_for_them(make: Callable[[bool], Made]) -> None:
    made = make(True)
    link, theirs = made.link, made.theirs
    sender, _ = sender_of(made)
    data = bytes(i % 251 for i in range(FRAGMENT)) * (BLOCKS + 2)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert not sender.send(KEY, bytes(32), memoryview(data), lambda: done.set_result(None))
    theirs.send(pack(Type.READY, *KEY, total=len(data)))
    await turn_until(lambda: not link.room)
    assert not done.done()
    theirs.send(pack(Type.RELEASE, word=0b101))
    await done
