"""Small messages between local processes go by a ring in the sender's segment."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator

import pytest

from aiodist.shm.arena import PAGE, available
from aiodist.shm.heap import Heap
from aiodist.shm.ring import RING, RING_BYTES, Producer
from aiodist.testing.channel_pair import turn_until
from aiodist.transport.base import EAGER_MESSAGE, Into, Key
from aiodist.transport.link import Waiting
from aiodist.transport.mapped import MappedLink
from aiodist.transport.receiving import Incoming
from aiodist.transport.sending import Outgoing
from aiodist.wire.frame import HEADER, Type, pack
from tests.helpers import shared

pytestmark = pytest.mark.skipif(not available(), reason="needs memfd (Linux)")

START = 32 * PAGE
KEY = Key(1, 0, 0, 0)


class Woken:
    """The part that the hub has: notes who is woken, and what it is to look at."""

    def __init__(self) -> None:
        self.readers: list[Waiting] = []
        self.woken: list[int] = []
        self.polls = 0

    def knows(self, rank: int) -> bool:
        return rank != 77

    def watch(self, waiting: Waiting) -> None:
        self.readers.append(waiting)

    def awake(self) -> None:
        self.polls += 1

    def wake(self, rank: int) -> None:
        self.woken.append(rank)

    def look(self) -> bool:
        looked = [reader.progress() for reader in self.readers]
        return any(looked)


class Pair:
    """A sender and a receiver in one process, over memory that they share."""

    def __init__(self, budget: int = 1 << 20) -> None:
        loop = asyncio.get_running_loop()
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        theirs.setblocking(False)
        self.segment, self.peer = shared()
        self.segment.heap = Heap(START, len(self.segment.view))
        self.woken, self.watched = Woken(), Woken()
        self.ends: list[tuple[str, bool, str]] = []
        self.arrived: list[int] = []
        self.sender = Outgoing(2, lambda rank: None, self._end("sender"), eager_budget=budget)
        self.receiver = Incoming(1, self._arrived, self._end("receiver"), eager_budget=budget)
        self.out = MappedLink(loop, mine, self.segment, rank=2)
        self.into = MappedLink(loop, theirs, self.peer, rank=1)
        self.out.wake_by(self.woken)
        self.into.wake_by(self.watched)
        self.sender.attach(self.out)
        self.receiver.attach(self.into)

    def _end(self, who: str) -> Callable[[int, bool, object], None]:
        return lambda rank, goodbye, cause: self.ends.append((who, goodbye, str(cause)))

    def _arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        self.arrived.append(key.seq)

    def send(self, seq: int, nbytes: int = 32) -> bytes:
        data = bytes((at * 7 + seq) % 251 for at in range(nbytes))
        assert self.sender.send(KEY._replace(seq=seq), bytes(32), memoryview(data), lambda: None)
        return data

    def recv(self, seq: int, nbytes: int = 32) -> tuple[bytes | bytearray, bool]:
        place = bytearray(nbytes)
        over = self.receiver.recv(KEY._replace(seq=seq), nbytes, Into(memoryview(place)), lambda: None)
        return place, over

    async def meet(self) -> None:
        """Have the receiver learn of the ring."""
        self.send(0)
        await turn_until(lambda: self.arrived == [0])

    def close(self) -> None:
        self.sender.kill()
        self.receiver.kill()
        self.peer.close()
        self.segment.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def one(**options: int) -> Pair:
        made.append(Pair(**options))
        return made[-1]

    yield one
    for pair in made:
        pair.close()


async def test_a_message_needs_nothing_but_the_ring(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()
    for seq in range(1, 500):
        nbytes = seq * 31 % (EAGER_MESSAGE + 1)
        place, _ = pair.recv(seq, nbytes)
        sent = pair.send(seq, nbytes)
        pair.receiver.poll()
        assert place == sent
        pair.sender.poll()  # it hears what was taken
    assert pair.woken.woken == [2] * 500
    assert pair.arrived == list(range(500))
    assert pair.watched.polls == 499


async def test_what_comes_while_nobody_polls_is_found_when_the_process_is_woken(
    make: Callable[..., Pair],
) -> None:
    pair = make()
    await pair.meet()
    sent = pair.send(1)
    assert pair.watched.look()
    assert pair.recv(1) == (sent, True)


async def test_what_the_ring_has_no_room_for_goes_over_the_socket(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()
    count = 3 * RING // EAGER_MESSAGE
    sent = [pair.send(seq, EAGER_MESSAGE) for seq in range(1, count)]
    assert 1 < len(pair.woken.woken) < count
    await turn_until(lambda: pair.watched.look() and len(pair.arrived) == count)
    assert [pair.recv(seq, EAGER_MESSAGE) for seq in range(1, count)] == [(data, True) for data in sent]


async def test_nobody_uses_a_ring_whose_memory_is_about_to_go(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()
    pair.out.wake_by(None)
    sent = pair.send(1)
    await turn_until(lambda: len(pair.arrived) == 2)
    assert pair.woken.woken == [2]
    assert pair.recv(1) == (sent, True)


async def test_there_is_no_ring_to_a_rank_that_cannot_be_woken(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.out._rank = 77
    pair.out.wake_by(pair.woken)
    sent = pair.send(0)
    await turn_until(lambda: pair.arrived == [0])
    assert not pair.woken.woken
    assert pair.recv(0) == (sent, True)


async def test_where_the_segment_is_full_there_is_no_ring(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.segment.heap.take(len(pair.segment.view) - START)
    sent = pair.send(0)
    await turn_until(lambda: pair.arrived == [0])
    assert not pair.woken.woken
    assert pair.recv(0) == (sent, True)


async def test_a_receiver_learns_how_to_look_after_it_learnt_of_the_ring(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.into.wake_by(None)
    await pair.meet()
    pair.send(1)
    pair.into.wake_by(pair.watched)
    assert pair.watched.look()
    assert pair.arrived == [0, 1]


@pytest.mark.parametrize("goodbye", [True, False])
async def test_what_is_in_the_ring_comes_before_the_end(make: Callable[..., Pair], goodbye: bool) -> None:
    pair = make()
    await pair.meet()
    sent = [pair.send(seq) for seq in range(1, 5)]
    if goodbye:
        pair.sender.close(lambda: None)
    else:
        pair.sender.kill()
    await turn_until(lambda: bool(pair.ends))
    assert pair.arrived == [0, 1, 2, 3, 4]
    assert [pair.recv(seq) for seq in range(1, 5)] == [(data, True) for data in sent]
    assert pair.ends[0][:2] == ("receiver", goodbye)


async def test_a_ring_is_given_back_at_the_end_unless_the_peer_may_read_it(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()
    pair.sender.kill()
    assert pair.segment.heap.taken() == RING_BYTES
    other = make()
    await other.meet()
    for seq in range(1, RING // 4 // (HEADER + 32)):
        other.send(seq)
        other.receiver.poll()
    await turn_until(lambda: other.out._producer is not None and other.out._producer.empty)
    other.sender.kill()
    assert other.segment.heap.taken() == 0


async def test_a_message_that_sets_off_a_look_is_taken_once(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()

    def again(rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        pair.arrived.append(key.seq)
        pair.receiver.poll()

    pair.receiver._arrived = again
    for seq in range(1, 4):
        pair.send(seq)
    pair.receiver.poll()
    assert pair.arrived == [0, 1, 2, 3]


# ── nonsense ─────────────────────────────────────────────────────────────────────────────────────────


async def refused(pair: Pair) -> str:
    await turn_until(lambda: bool(pair.ends))
    return pair.ends[0][2]


@pytest.mark.parametrize("at", [0, 64, START + 8, 1 << 40, 1 << 63])
async def test_a_ring_that_is_not_in_the_segment_is_refused(make: Callable[..., Pair], at: int) -> None:
    pair = make()
    pair.out._sock.send(pack(Type.RING, word=at))
    assert (await refused(pair)).startswith(f"protocol error: a ring at {at} of a segment")


async def test_a_ring_comes_once_and_from_a_sender(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()
    pair.out._sock.send(pack(Type.RING, word=START))
    assert "a RING frame from a receiver, or a second one" in await refused(pair)
    pair = make()
    pair.into._sock.send(pack(Type.RING, word=START))
    assert "a RING frame from a receiver" in await refused(pair)


async def test_nothing_can_be_taken_of_a_ring_that_is_not(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.into._sock.send(pack(Type.CONSUMED, word=8))
    assert "a CONSUMED frame, and there is no ring" in await refused(pair)


@pytest.mark.parametrize(
    ("header", "payload", "cause"),
    [
        (pack(Type.DATA, *KEY, nbytes=8, total=8), 8, "a DATA frame of 8 bytes in a ring"),
        (pack(Type.EAGER, *KEY, nbytes=80, total=80), 8, "a EAGER frame of 80 bytes in a ring"),
        (pack(Type.GOODBYE), 0, "a GOODBYE frame of 0 bytes in a ring"),
        (pack(Type.EAGER, *KEY)[: HEADER - 8], 0, "a record of 88 bytes in a ring"),
        (b"\xff" * HEADER, 0, "a frame of unknown type 255"),
    ],
)
async def test_nonsense_in_a_ring_ends_the_link(
    make: Callable[..., Pair], header: bytes, payload: int, cause: str
) -> None:
    pair = make()
    at = pair.segment.heap.take(RING_BYTES)
    Producer(pair.segment.view, at).append(header, memoryview(bytes(payload)))
    pair.out._sock.send(pack(Type.RING, word=at))
    assert await refused(pair) == f"protocol error: {cause}"


async def test_a_head_that_cannot_be_ends_the_link(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()
    pair.segment.view[START : START + 8] = (1 << 63).to_bytes(8, "little")
    pair.receiver.poll()
    assert pair.ends[0][2].startswith("protocol error: a ring whose head is")
