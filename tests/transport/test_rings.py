"""Frames between local processes go by rings in their segments, in order, whatever happens to the rings."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterator

import pytest

from aiodist import _engine
from aiodist.net.wire.frame import HEADER, Type, pack
from aiodist.transport.base import EAGER_MESSAGE, FRAGMENT, Into, Key
from aiodist.transport.link import Waiting
from aiodist.transport.mapped import BLOCKS, MappedLink
from aiodist.transport.receiving import Incoming
from aiodist.transport.rings import ANSWERS, Switch
from aiodist.transport.sending import Outgoing
from aiodist.transport.shm.arena import PAGE, available
from aiodist.transport.shm.heap import Heap
from aiodist.transport.shm.ring import RING, area_bytes, clear
from aiodist.transport.stream import StreamLink
from tests.helpers import shared
from tests.support.channel_pair import turn_until

pytestmark = [
    pytest.mark.skipif(not available(), reason="needs memfd (Linux)"),
    pytest.mark.skipif(_engine.compiled is None, reason="needs the compiled engine"),
]

START = 32 * PAGE
KEY = Key(1, 0, 0, 0)
BOTH = area_bytes(RING) + area_bytes(ANSWERS)


class Woken:
    """The part that the hub has: notes who is woken, and what it is to look at."""

    def __init__(self) -> None:
        self.readers: dict[Waiting, None] = {}
        self.woken: list[int] = []
        self.polls = 0

    def knows(self, rank: int) -> bool:
        return rank != 77

    def watch(self, waiting: Waiting) -> None:
        self.readers[waiting] = None

    def awake(self) -> None:
        self.polls += 1

    def wake(self, rank: int) -> None:
        self.woken.append(rank)

    def poll(self) -> bool:
        looked = [reader.progress() for reader in list(self.readers)]
        return any(looked)


class Pair:
    """A sender and a receiver in one process, whose memory is one segment, too."""

    def __init__(self, budget: int = 1 << 20, rank: int = 2) -> None:
        loop = asyncio.get_running_loop()
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        theirs.setblocking(False)
        self.segment, self.peer = shared(1 << 20)
        self.segment.heap = Heap(START, len(self.segment.view))
        self.woken, self.watched = Woken(), Woken()
        self.ends: list[tuple[str, bool, str]] = []
        self.arrived: list[int] = []
        self.over: list[int] = []
        self.sender = Outgoing(2, lambda rank: None, self._end("sender"), eager_budget=budget)
        self.receiver = Incoming(1, self._arrived, self._end("receiver"), eager_budget=budget)
        self.out = MappedLink(loop, mine, self.segment, self.peer, rank=rank, dialed=True)
        self.into = MappedLink(loop, theirs, self.segment, self.peer, rank=1, dialed=False)
        self.out.wake_by(self.woken)
        self.into.wake_by(self.watched)
        self.sender.attach(self.out)
        self.receiver.attach(self.into)

    def _end(self, who: str) -> Callable[[int, bool, object], None]:
        return lambda rank, goodbye, cause: self.ends.append((who, goodbye, str(cause)))

    def _arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        self.arrived.append(key.seq)

    def send(self, seq: int, nbytes: int = 32) -> bytes:
        data = contents(seq, nbytes)
        if self.sender.send(
            KEY._replace(seq=seq), bytes(32), memoryview(data), lambda: self.over.append(seq)
        ):
            self.over.append(seq)
        return data

    def recv(self, seq: int, nbytes: int = 32) -> tuple[bytes | bytearray, bool]:
        place = bytearray(nbytes)
        over = self.receiver.recv(KEY._replace(seq=seq), nbytes, Into(memoryview(place)), lambda: None)
        return place, over

    def poll(self) -> bool:
        looked = self.watched.poll(), self.woken.poll()
        return any(looked)

    async def meet(self) -> None:
        """Have both ends use rings."""
        self.send(0)
        await turn_until(lambda: self.out._rings.on and self.into._rings.on and self.arrived == [0])
        await turn_until(lambda: self.into.consumer is not None)
        self.woken.woken.clear()

    def close(self) -> None:
        self.sender.kill()
        self.receiver.kill()
        self.peer.close()
        self.segment.close()


def contents(seq: int, nbytes: int) -> bytes:
    return (bytes((at * 7 + seq) % 251 for at in range(251)) * (nbytes // 251 + 1))[:nbytes]


@pytest.fixture
def make() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def one(**options: int) -> Pair:
        made.append(Pair(**options))
        return made[-1]

    yield one
    for pair in made:
        pair.close()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Refuse from now on to send anything over a socket."""

    def send(*_: object) -> int:
        raise AssertionError("something went over the socket")

    return lambda: monkeypatch.setattr(StreamLink, "_send", send)


async def test_a_message_needs_nothing_but_the_ring(
    make: Callable[..., Pair], silent: Callable[[], None]
) -> None:
    pair = make()
    await pair.meet()
    silent()
    for seq in range(1, 500):
        nbytes = seq * 31 % (EAGER_MESSAGE + 1)
        place, _ = pair.recv(seq, nbytes)
        sent = pair.send(seq, nbytes)
        pair.watched.poll()
        assert place == sent
        pair.woken.poll()  # it hears what was taken
    assert len(pair.woken.woken) == 499
    assert pair.arrived == list(range(500))


async def test_large_messages_need_nothing_but_the_rings_either(
    make: Callable[..., Pair], silent: Callable[[], None]
) -> None:
    pair = make()
    await pair.meet()
    silent()
    for seq, nbytes in enumerate((EAGER_MESSAGE + 1, FRAGMENT, 5 * FRAGMENT + 3, 3 * BLOCKS * FRAGMENT), 1):
        place, _ = pair.recv(seq, nbytes)
        sent = pair.send(seq, nbytes)
        await turn_until(lambda seq=seq, place=place, sent=sent: pair.poll() and place == sent)  # type: ignore[misc]
        assert seq in pair.over


async def test_what_comes_while_nobody_polls_is_found_when_the_process_is_woken(
    make: Callable[..., Pair],
) -> None:
    pair = make()
    await pair.meet()
    sent = pair.send(1)
    assert pair.watched.poll()
    assert pair.recv(1) == (sent, True)


@pytest.mark.parametrize("nbytes", [EAGER_MESSAGE, EAGER_MESSAGE - 3, 4001])
async def test_what_a_ring_has_no_room_for_waits_until_it_has(make: Callable[..., Pair], nbytes: int) -> None:
    pair = make()
    await pair.meet()
    count = 3 * RING // nbytes
    sent = [pair.send(seq, nbytes) for seq in range(1, count)]
    assert (pair.out.room, pair.out.idle) == (False, False)
    pair.watched.woken.clear()
    pair.watched.poll()
    assert pair.watched.woken == [1]  # the sender waits for room
    while len(pair.arrived) < count:
        pair.poll()
    assert (pair.out.room, pair.arrived) == (True, list(range(count)))
    assert [pair.recv(seq, nbytes) for seq in range(1, count)] == [(data, True) for data in sent]


@pytest.mark.parametrize("first", ["sender", "receiver"])
async def test_nobody_uses_a_ring_whose_memory_is_about_to_go(make: Callable[..., Pair], first: str) -> None:
    """All that was in the rings, or waits for them, comes before what goes over the socket again."""
    pair = make()
    await pair.meet()
    count = 2 * RING // EAGER_MESSAGE
    for seq in range(1, count):
        pair.send(seq, EAGER_MESSAGE)
    (pair.out if first == "sender" else pair.into).wake_by(None)
    await turn_until(lambda: not pair.out._rings.on and not pair.into._rings.on)
    pair.woken.woken.clear()
    pair.send(count)
    await turn_until(lambda: len(pair.arrived) == count + 1)
    assert pair.arrived == list(range(count + 1))
    assert not pair.woken.woken
    place, _ = pair.recv(count + 1, FRAGMENT)
    sent = pair.send(count + 1, FRAGMENT)
    await turn_until(lambda: count + 1 in pair.over and place == sent)


@pytest.mark.parametrize("seed", range(60))
async def test_order_is_kept_over_all_changes(make: Callable[..., Pair], seed: int) -> None:
    """Messages of all sizes, while either end comes to use rings, or uses them no more, at any moment."""
    chance = random.Random(seed)
    pair = make()
    if chance.random() < 0.5:
        pair.out.wake_by(None)
        pair.out._rings._over = False  # as if it had not been asked yet
    places, sent = [], []
    for seq in range(40):
        nbytes = chance.choice([0, 5, 4000, EAGER_MESSAGE, EAGER_MESSAGE + 1, 50_000, FRAGMENT + 1])
        if chance.random() < 0.5:
            places.append(pair.recv(seq, nbytes)[0])
            sent.append(pair.send(seq, nbytes))
        else:
            sent.append(pair.send(seq, nbytes))
            places.append(pair.recv(seq, nbytes)[0])
        act = chance.randrange(12)
        if act == 0 and seq > 20:
            pair.out.wake_by(None)
        elif act == 1 and seq > 20:
            pair.into.wake_by(None)
        elif act == 2:
            pair.out.wake_by(pair.woken)
        elif act < 6:
            pair.poll()
        elif act < 9:
            await asyncio.sleep(0)
    await turn_until(lambda: (pair.poll(), len(pair.over) == 40 and places == sent)[1])
    assert not pair.ends


async def test_what_is_in_the_ring_is_taken_though_on_and_off_are_read_together(
    make: Callable[..., Pair],
) -> None:
    """Of more bytes than are taken in one go."""
    pair = make()
    nbytes = 7 * FRAGMENT
    pair.send(0)
    await turn_until(lambda: pair.into._rings.on and pair.arrived == [0])
    pair.into._out.unwatch()  # it computes, and reads nothing of the socket
    await turn_until(lambda: pair.out._rings.on)
    place, _ = pair.recv(1, nbytes)
    sent = pair.send(1, nbytes)
    pair.woken.poll()  # the sender hears that there is a place
    assert 1 in pair.over
    pair.out.wake_by(None)
    pair.into._out.watch()
    await turn_until(lambda: place == sent)


@pytest.mark.parametrize("room", [2304, 4608, 8000])
async def test_frames_that_waited_go_over_a_socket_with_little_room(
    make: Callable[..., Pair], room: int
) -> None:
    pair = make()
    await pair.meet()
    pair.out._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    count = 3 * RING // EAGER_MESSAGE
    sent = [pair.send(seq, EAGER_MESSAGE) for seq in range(1, count)]
    pair.out.wake_by(None)
    await turn_until(lambda: len(pair.arrived) == count or bool(pair.ends))
    assert not pair.ends
    assert [pair.recv(seq, EAGER_MESSAGE) for seq in range(1, count)] == [(data, True) for data in sent]


async def test_a_frame_whose_callback_raises_is_acted_on_once(
    make: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make()
    await pair.meet()
    raised: list[object] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_exception_handler", raised.append)

    def arrived(rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        pair.arrived.append(key.seq)
        raise RuntimeError(key.seq)

    pair.receiver._arrived = arrived
    for seq in range(1, 4):
        pair.send(seq)
    pair.poll()
    assert pair.arrived == [0, 1, 2, 3]
    assert (len(raised), pair.ends) == (3, [])
    raised.clear()  # tracebacks keep what is mapped


async def test_there_is_no_ring_to_a_rank_that_cannot_be_woken(make: Callable[..., Pair]) -> None:
    pair = make(rank=77)
    sent = pair.send(0)
    await turn_until(lambda: pair.arrived == [0])
    assert not pair.woken.woken
    assert pair.recv(0) == (sent, True)


@pytest.mark.parametrize("room", [0, area_bytes(RING)])
async def test_where_a_segment_is_full_there_are_no_rings(make: Callable[..., Pair], room: int) -> None:
    pair = make()
    pair.segment.heap.take(len(pair.segment.view) - START - room)
    for seq in range(5):
        sent = pair.send(seq)
        await turn_until(lambda seq=seq: seq in pair.arrived)  # type: ignore[misc]
        assert pair.recv(seq) == (sent, True)
    assert not pair.woken.woken


async def test_a_fragment_for_which_the_segment_has_no_room_goes_over_the_socket(
    make: Callable[..., Pair],
) -> None:
    pair = make()
    await pair.meet()
    pair.segment.heap.take(len(pair.segment.view) - START - BOTH)
    pair.send(1)
    place, _ = pair.recv(2, FRAGMENT)
    sent = pair.send(2, FRAGMENT)
    await turn_until(lambda: (pair.poll(), place == sent and 2 in pair.over)[1])
    assert pair.arrived == [0, 1, 2]
    assert not pair.out._rings.on


async def test_a_receiver_answers_when_it_has_learnt_how_to_look(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.into._rings._waking = None
    pair.send(0)
    await turn_until(lambda: pair.into._rings._theirs is not None)
    assert not pair.out._rings.on
    pair.into.wake_by(pair.watched)
    await turn_until(lambda: pair.out._rings.on)
    pair.send(1)
    await turn_until(lambda: (pair.poll(), pair.arrived == [0, 1])[1])


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


async def test_rings_are_given_back_where_both_ends_said_goodbye(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()
    assert pair.segment.heap.taken() == BOTH
    over: list[int] = []
    pair.sender.close(lambda: over.append(1))
    await turn_until(lambda: bool(over))
    assert pair.segment.heap.taken() == 0
    pair = make()
    await pair.meet()
    pair.sender.kill()  # the peer may look into it still
    await turn_until(lambda: bool(pair.ends))
    assert pair.segment.heap.taken() == BOTH


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


async def test_a_link_that_ends_by_what_it_takes_takes_no_more(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()
    pair.receiver._arrived = lambda rank, key, signature, nbytes: pair.receiver.kill()
    for seq in range(1, 4):
        pair.send(seq)
    assert not pair.watched.poll()


# ── nonsense ─────────────────────────────────────────────────────────────────────────────────────────


async def refused(pair: Pair) -> str:
    await turn_until(lambda: bool(pair.ends))
    return pair.ends[0][2]


@pytest.mark.parametrize("at", [64, START + 8, 1 << 40, 1 << 63])
async def test_a_ring_that_is_not_in_the_segment_is_refused(make: Callable[..., Pair], at: int) -> None:
    pair = make()
    pair.out._sock.send(pack(Type.RING, word=at, total=RING))
    assert (await refused(pair)).startswith(f"protocol error: a ring of {RING} bytes at {at} of a segment")


@pytest.mark.parametrize("size", [8, 100, HEADER, RING + 4, 1 << 40])
async def test_a_ring_of_a_size_that_cannot_be_is_refused(make: Callable[..., Pair], size: int) -> None:
    pair = make()
    pair.out._sock.send(pack(Type.RING, word=START, total=size))
    assert (await refused(pair)).startswith(f"protocol error: a ring of {size} bytes at {START}")


async def test_a_ring_comes_once_and_only_where_it_was_asked_for(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()
    pair.out._sock.send(pack(Type.RING, word=START, total=RING))
    assert "a second RING frame" in await refused(pair)
    pair = make()
    pair.into._sock.send(pack(Type.RING, word=START, total=RING))
    assert "or one that nobody asked for" in await refused(pair)


@pytest.mark.parametrize("total", [Switch.ON, 2, 1 << 40])
@pytest.mark.parametrize("end", ["sender", "receiver"])
async def test_a_ring_frame_out_of_place_is_refused(make: Callable[..., Pair], total: int, end: str) -> None:
    pair = make()
    await pair.meet()
    (pair.into if end == "sender" else pair.out)._sock.send(pack(Type.RING, total=total))
    assert "a RING frame out of place" in await refused(pair)


@pytest.mark.parametrize(
    ("header", "payload", "cause"),
    [
        (pack(Type.EAGER, *KEY, nbytes=80, total=80), 8, "a EAGER frame of 80 bytes in a record of 104"),
        (pack(Type.GOODBYE), 0, "a GOODBYE frame of 0 bytes in a ring"),
        (pack(Type.RING, total=Switch.OFF), 0, "a RING frame of 0 bytes in a ring"),
        (pack(Type.EAGER, *KEY)[: HEADER - 8], 0, "a record of 88 bytes in a ring"),
        (b"\xff" * HEADER, 0, "a frame of unknown type 255"),
    ],
)
async def test_nonsense_in_a_ring_ends_the_link(
    make: Callable[..., Pair], header: bytes, payload: int, cause: str
) -> None:
    pair = make()
    view, at = pair.segment.view, pair.segment.heap.take(area_bytes(RING))
    clear(view, at)
    assert _engine.compiled is not None
    _engine.compiled.Producer(view, at, RING, view, at).append(header, memoryview(bytes(payload)))
    pair.out._sock.send(pack(Type.RING, word=at, total=RING) + pack(Type.RING, total=Switch.ON))
    assert await refused(pair) == f"protocol error: {cause}"


async def test_a_head_that_cannot_be_ends_the_link(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()
    pair.segment.view[START : START + 8] = (1 << 63).to_bytes(8, "little")
    pair.receiver.poll()
    assert pair.ends[0][2].startswith("protocol error: a ring whose head is")


async def test_a_peer_that_has_taken_what_cannot_be_ends_the_link(make: Callable[..., Pair]) -> None:
    pair = make()
    await pair.meet()
    at = pair.into._rings._at
    pair.segment.view[at + 64 : at + 72] = (1 << 63).to_bytes(8, "little")
    for seq in range(1, 2 * RING // EAGER_MESSAGE):
        pair.send(seq, EAGER_MESSAGE)
    assert (await refused(pair)).startswith(f"protocol error: {1 << 63} bytes of a ring taken")
