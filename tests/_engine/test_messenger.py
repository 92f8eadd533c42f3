"""Small messages by a ring: what is delivered at once, what is left to Python, and what is sent."""

from __future__ import annotations

from threading import get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist import _engine
from aiodist.backends.base import complete
from aiodist.backends.host.held_up import ANY
from aiodist.backends.host.messages import Messages
from aiodist.backends.host.messenger import signature_of_bytes
from aiodist.base.operations import Kind
from aiodist.base.types import Call, message_signature
from aiodist.group import ProcessGroup
from aiodist.net.wire.frame import HEADER, Type, pack, pack_eager
from aiodist.testing import spmd
from aiodist.transport import EAGER_MESSAGE
from aiodist.transport.shm.ring import RING, area_bytes, clear
from tests.helpers import core_of

pytestmark = pytest.mark.skipif(_engine.compiled is None, reason="needs the compiled engine")

CONTEXT, RANK, SOURCE = 7, 12, 2
AT = 64


class Bench:
    """A ring from member 2 of a group of 4, what comes by it, and the receives that wait."""

    def __init__(self) -> None:
        assert _engine.compiled is not None
        self.engine = _engine.compiled
        mine, theirs = (bytearray(AT + area_bytes(RING)) for _ in range(2))
        for memory in (mine, theirs):
            clear(memoryview(memory), AT)
        self.producer = self.engine.Producer(theirs, AT, RING, mine, AT)
        self.consumer = self.engine.Consumer(theirs, AT, RING, mine, AT)
        channels: Any = SimpleNamespace(context=CONTEXT, size=4)
        self.messages = Messages(channels)
        members = {10 + source: source for source in range(4)}
        self.inbox = self.engine.Inbox(self.messages, members, signature_of_bytes, complete, None, None)
        self.results: list[Any] = []
        self.returned: list[int] = []
        self.told: list[None] = []
        self.channel: Any = type("Channel", (self.engine.ReceiveAccount,), {})()
        self.channel.rank, self.channel.questions = RANK, set()
        self.channel.takers, self.channel.owed = {CONTEXT: self.inbox}, {}
        self.channel.budgets, self.channel.batch = 1 << 20, 1 << 14
        self.channel.return_credit = self.returned.append
        self.channel.link = SimpleNamespace(tell_room=lambda: self.told.append(None))

    def wait(self, target: Any, tag: int = 5, source: int = SOURCE) -> Any:
        """A receive that waits for the next message of its source and tag; None: of bytes."""
        work: Any = SimpleNamespace(_finish=self.results.append, _fail=self.results.append)
        like = None
        if target is not None:
            signature = message_signature(target.dtype, target.size, 0)
            header = pack_eager(CONTEXT, 1 + tag, 0, target.nbytes, signature)
            call = Call(Kind.recv, 0, target.dtype, target.shape, None, source)
            like = self.engine.PreparedMessage(call, None, None, header, None, source, tag, sealed=False)
        receive = self.engine.Receive(self.inbox, work, source, tag, target, like, None, lambda _: None)
        self.messages.next_messages[tag] = receive
        return receive

    def deliver(self) -> int:
        return self.engine.deliver(self.consumer, self.channel, 1 << 20)


def eager(data: Any, number: int = 0, **other: Any) -> bytes:
    """The frame of a message of an array, but for `other`."""
    fields: dict[str, Any] = {"context": CONTEXT, "stream": 6, "seq": number}
    fields |= {"nbytes": data.nbytes, "total": data.nbytes}
    fields["signature"] = message_signature(data.dtype, data.size, number)
    return pack(**{"kind": Type.EAGER, **fields, **other})


def test_a_message_goes_to_the_receive_that_waits_for_it() -> None:
    bench, place, data = Bench(), np.zeros((2, 3), "c16"), np.arange(6.0).reshape(2, 3) + 3j
    for number in range(3):
        bench.wait(place)
        assert bench.producer.append(eager(data + number, number), (data + number).tobytes())
        assert bench.deliver() == HEADER + data.nbytes
        assert np.array_equal(place, data + number)
    assert bench.results == [SOURCE] * 3
    assert bench.messages.heard == [0, 0, 3, 0]
    assert bench.messages.numbers == {(SOURCE, 5): 3}
    assert not bench.messages.next_messages
    spent = 3 * (HEADER + data.nbytes)
    assert (bench.channel.spent_all, bench.channel.owed, bench.channel.owed_all) == (spent, {7: spent}, spent)
    assert not bench.consumer.waiting()


def test_one_of_any_size_from_anybody_gets_bytes() -> None:
    bench = Bench()
    for number, size in enumerate((1, 9, EAGER_MESSAGE)):
        bench.wait(None, source=ANY)
        data = np.arange(size, dtype=np.uint8) + number
        assert bench.producer.append(eager(data, number), data.tobytes())
        assert bench.deliver() == HEADER + size
        assert bench.results.pop() == (SOURCE, data.tobytes())


FLOATS = np.arange(3.0)


@pytest.mark.parametrize(
    ("frame", "size"),
    [
        (eager(FLOATS, 1), 24),  # it overtook another
        (eager(np.arange(3)), 24),  # of another dtype
        (eager(np.arange(4.0)), 32),  # of another size
        (eager(FLOATS, stream=7), 24),  # of another tag
        (eager(FLOATS, stream=0), 24),  # a collective's
        (eager(FLOATS, context=8), 24),  # of another group
        (eager(FLOATS, part=1), 24),
        (eager(FLOATS, kind=Type.DATA), 24),
        (eager(FLOATS, offset=8, total=32), 24),
        (eager(FLOATS, nbytes=16, total=24), 24),
        (eager(FLOATS), 16),  # it is not all there
        (eager(FLOATS)[:56] + bytes([1]) + eager(FLOATS)[57:], 24),  # nonsense where there is nothing
        (eager(FLOATS)[:1] + bytes([1]) + eager(FLOATS)[2:], 24),
    ],
)
def test_all_else_is_left_to_python(frame: bytes, size: int) -> None:
    bench, place = Bench(), np.zeros(3)
    receive = bench.wait(place)
    assert bench.producer.append(frame, np.arange(1.0, 9.0).tobytes()[:size])
    assert bench.deliver() == 0
    assert (receive.got, bench.results, bench.messages.next_messages) == (-1, [], {5: receive})
    assert not place.any()
    assert bench.consumer.waiting()
    assert (bench.channel.spent_all, bench.channel.owed) == (0, {})


@pytest.mark.parametrize(
    "what", ["questions", "budgets", "takers", "dead", "awaited", "rank", "busy", "source"]
)
def test_what_python_has_to_look_at_is_left_to_it(what: str) -> None:
    bench, place = Bench(), np.zeros(3)
    bench.wait(place, source=3 if what == "source" else SOURCE)
    if what == "questions":
        bench.channel.questions.add("one")
    elif what == "budgets":
        bench.channel.budgets = HEADER + 23
    elif what == "takers":
        bench.channel.takers[CONTEXT] = bench.messages.take
    elif what == "dead":
        bench.messages.halt()
    elif what == "awaited":
        bench.messages.when_come(SOURCE, 2, lambda: None)
    elif what == "rank":
        bench.channel.rank = 99
    elif what == "busy":
        bench.consumer.busy = True
    assert bench.producer.append(eager(FLOATS), FLOATS.tobytes())
    assert bench.deliver() == 0
    assert bench.consumer.waiting()
    assert not place.any()


def test_credit_is_returned_once_it_is_much() -> None:
    bench, place = Bench(), np.zeros(1024)
    for number in range(4):
        bench.wait(place)
        assert bench.producer.append(eager(place, number), place.tobytes())
        bench.deliver()
    assert (
        bench.returned == [CONTEXT] * 3
    )  # from the second on it is more than a batch; here nobody resets it


def test_a_producer_that_waits_for_room_is_woken() -> None:
    bench, place = Bench(), np.zeros(3)
    bench.wait(place)
    assert bench.producer.append(eager(FLOATS), FLOATS.tobytes())
    bench.producer.wait(True)
    bench.deliver()
    assert len(bench.told) == 1


def test_a_producer_is_woken_where_what_decodes_a_message_is_interrupted() -> None:
    bench = Bench()

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    work: Any = SimpleNamespace(_finish=bench.results.append, _fail=bench.results.append)
    receive = bench.engine.Receive(bench.inbox, work, SOURCE, 5, None, None, interrupted, lambda _: None)
    bench.messages.next_messages[5] = receive
    data = np.arange(9, dtype=np.uint8)
    assert bench.producer.append(eager(data), data.tobytes())
    bench.producer.wait(True)
    with pytest.raises(KeyboardInterrupt):
        bench.deliver()
    assert len(bench.told) == 1
    assert not bench.consumer.waiting()


def test_several_messages_go_at_once_up_to_one_that_is_another() -> None:
    bench, places = Bench(), [np.zeros(3) for _ in range(3)]
    for tag, place in enumerate(places):
        bench.wait(place, tag=tag)
    for stream in (1, 2, 9, 3):
        assert bench.producer.append(eager(FLOATS + stream, stream=stream), (FLOATS + stream).tobytes())
    assert bench.deliver() == 2 * (HEADER + 24)
    assert [place.tolist() for place in places] == [[1, 2, 3], [2, 3, 4], [0, 0, 0]]


@given(data=st.data())
def test_a_peer_that_writes_nonsense_delivers_nothing_else(data: st.DataObject) -> None:
    """Any bytes of a frame: only what is exactly the message that is waited for gets through."""
    bench, place = Bench(), np.zeros(3)
    bench.wait(place)
    frame = bytearray(eager(FLOATS + 1) + (FLOATS + 1).tobytes())
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(0, HEADER - 1))] = data.draw(st.integers(0, 255))
    first = data.draw(st.integers(1, 15)) * 8
    frame[0] = frame[0] or 1
    assert bench.producer.append(bytes(frame[:first]), frame[first:])
    frame[48:56] = bytes(8)  # `word`, which says nothing here
    whole = frame == eager(FLOATS + 1) + (FLOATS + 1).tobytes()
    moved = bench.deliver()
    assert moved == (HEADER + 24 if whole else 0)
    assert place.tolist() == ([1, 2, 3] if whole else [0, 0, 0])


class Sender:
    """A messenger of a group of 4, whose links are given."""

    def __init__(self, link: Any) -> None:
        bench = Bench()
        self.frames: list[bytes] = []
        self.numbers: dict[Any, int] = {}
        self.channel: Any = type("Channel", (bench.engine.SendAccount,), {})()
        self.channel.link, self.channel.spent, self.channel.offers = link, {}, []
        self.channel.budget, self.channel.budgets = 1 << 16, 1 << 20
        self.channel.send_eager = self._send_eager
        track = SimpleNamespace(line_of=lambda *_: "here", keep=lambda _: None)
        issuer = SimpleNamespace(track=track, thread=get_ident(), running=lambda: True)
        self.shut: set[int] = set()
        channels: Any = SimpleNamespace(shut=self.shut, crowded=set(), context=CONTEXT, rank=0, size=4)
        sort = SimpleNamespace(code=None, at=0)

        def prepare(sends: bool, array: Any, peer: int, tag: int) -> Any:
            signature = message_signature(array.dtype, array.size, 0)
            header = pack_eager(CONTEXT, 1 + tag, 0, array.nbytes, signature)
            call = Call(Kind.send, 0, array.dtype, array.shape, None, peer)
            key = (not sends, peer, tag, "")
            return bench.engine.PreparedMessage(
                call, sort, self.channel, header, key, peer, tag, sealed=False
            )

        def prepare_bytes(sends: bool, peer: int, tag: int) -> Any:
            call = Call(Kind.send, 0, np.dtype(np.uint8), (0,), None, peer)
            header = pack_eager(CONTEXT, 1 + tag, 0, 0, bytes(32))
            key = (not sends, peer, tag, "")
            return bench.engine.PreparedMessage(call, sort, self.channel, header, key, peer, tag, sealed=True)

        self.messages = bench.messages
        self.messenger = bench.engine.Messenger(
            bench.inbox,
            bench.messages,
            channels,
            issuer,
            self.numbers,
            bench.engine.Handle,
            prepare,
            prepare_bytes,
            hold=lambda _: None,
            begin=lambda _: None,
            gone=set(),
            peers=[None] * 4,
        )

    def _send_eager(self, header: bytes, _context: int, payload: memoryview, _sealed: bool) -> None:
        self.frames.append(header + bytes(payload))


@given(
    dtype=st.sampled_from(["f4", "u1", "?", "f2", "c16", "i8"]),
    shape=st.lists(st.integers(1, 4), max_size=4),
    number=st.integers(0, 2**60),
    tag=st.integers(0, 2**31 - 1),
    ring=st.booleans(),
)
def test_what_leaves_is_the_frame_of_its_message(
    dtype: str, shape: list[int], number: int, tag: int, ring: bool
) -> None:
    bench = Bench()
    sender = Sender(SimpleNamespace(producer=bench.producer if ring else None))
    sender.numbers[False, 1, tag, ""] = number
    data = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    for place in range(2):
        work = sender.messenger.send(data, 1, tag, True)
        assert (work._state, work._seq, work._result) == (1, number + place, None)
    wanted = [eager(data, number + place, stream=1 + tag) + data.tobytes() for place in range(2)]
    if ring:
        found = []
        while bench.consumer.waiting():
            found.append(bytes(bench.consumer.first()[: HEADER + data.nbytes]))
            bench.consumer.took(HEADER + data.nbytes)
        assert (sender.channel.spent, sender.channel.spent_all) == (
            {CONTEXT: 2 * (HEADER + data.nbytes)},
            2 * (HEADER + data.nbytes),
        )
    else:
        found = sender.frames
    assert found == wanted
    assert sender.numbers == {(False, 1, tag, ""): number + 2}
    assert sender.messages.sent == [0, 2, 0, 0]


def test_bytes_of_any_number_leave() -> None:
    sender = Sender(SimpleNamespace(producer=None))
    for number, size in enumerate((1, 100, EAGER_MESSAGE)):
        data = bytes(at % 251 for at in range(size))
        assert sender.messenger.send_bytes(data, 1, 5, True) is not None
        array = np.frombuffer(data, np.uint8)
        assert sender.frames[-1] == eager(array, number) + data
    assert sender.messenger.send_bytes(b"", 1, 5, True) is None
    assert sender.messenger.send_bytes(bytes(EAGER_MESSAGE + 1), 1, 5, True) is None


@pytest.mark.parametrize("what", ["link", "over", "closing", "budget", "budgets", "dead", "shut"])
def test_what_may_not_leave_at_once_takes_no_number(what: str) -> None:
    sender = Sender(SimpleNamespace(producer=None))
    if what == "link":
        sender.channel.link = None
    elif what in ("over", "closing"):
        setattr(sender.channel, what, True)
    elif what in ("budget", "budgets"):
        setattr(sender.channel, what, HEADER + 23)
    elif what == "dead":
        sender.messages.halt()
    elif what == "shut":
        sender.shut.add(1)
    assert sender.messenger.send(FLOATS, 1, 5, True) is None
    assert (sender.numbers, sender.frames, sender.messages.sent) == ({}, [], [0] * 4)


@pytest.mark.parametrize(
    "arguments",
    [([1.0], 1, 5), (FLOATS, 4, 5), (FLOATS, -1, 5), (FLOATS, True, 5), (FLOATS, 1, 2.0), (FLOATS, 1, -1)],
)
def test_what_is_no_case_for_it_is_left_to_the_general_way(arguments: Any) -> None:
    sender = Sender(SimpleNamespace(producer=None))
    tensor, peer, tag = arguments
    for call in (sender.messenger.send, sender.messenger.recv):
        assert call(tensor, peer, tag, True) is None
        assert call(arguments[0], 1 << 70, 5, True) is None
        assert call(arguments[0], 1, 1 << 70, True) is None
    assert sender.numbers == {}


@spmd(transport="shm")
async def test_ranks_of_one_host_take_it(pg: ProcessGroup) -> None:
    """Messages go by the rings once they are agreed on, and every result is right."""
    place = np.zeros(4)
    for turn in range(200):
        mine = np.arange(4.0) + 100 * turn + 1000 * pg.rank
        if pg.rank == 0:
            await pg.send(mine, 1, turn % 3)
            assert await pg.recv(place, 1, 1) == 1
            assert place.tolist() == (mine + 1000).tolist()
        elif pg.rank == 1:
            assert await pg.recv(place, 0, turn % 3) == 0
            assert place.tolist() == (mine - 1000).tolist()
            await pg.send(mine, 0, 1)
    if pg.rank < 2:
        host: Any = core_of(pg).host
        link = host.channels.outgoing(1 - pg.rank).link
        assert link.producer is not None
        assert link.producer.clear
    await pg.barrier()
