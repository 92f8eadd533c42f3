"""Large fragments are read where they lie; what is withdrawn is never taken for what was sent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiodist.net.wire.frame import PAYLOAD_LIMIT, Type, pack
from aiodist.transport import rings
from aiodist.transport.base import FRAGMENT, Fold, Into
from aiodist.transport.lending import LEND
from aiodist.transport.shm.remote import Own, Remote
from aiodist.transport.shm.ring import WORDS
from tests.support.channel_pair import turn_until
from tests.transport.test_rings import BOTH, KEY, Pair, contents, refused

MANY = (WORDS + 3) * PAYLOAD_LIMIT


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(rings, "pays", lambda: True)
    made = Pair()
    made.peer.pid = os.getpid()
    await made.meet()
    if made.out._rings.lender is None:
        made.close()
        pytest.skip("this system lets no process read another's memory")
    yield made
    made.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """What is called, once each, when a fragment was read, before anybody looks at its word again."""
    calls: list[Callable[[], None]] = []
    real = Remote.read

    def read(self: Remote, into: memoryview, address: int) -> bool:
        whole = real(self, into, address)
        while calls:
            calls.pop()()
        return whole

    monkeypatch.setattr(Remote, "read", read)
    yield calls
    assert not calls


@pytest.mark.parametrize("nbytes", [LEND, LEND + 3, PAYLOAD_LIMIT + 5, MANY, MANY + LEND - 1])
async def test_what_is_lent_is_read_where_it_lies(pair: Pair, nbytes: int) -> None:
    place, _ = pair.recv(1, nbytes)
    sent = pair.send(1, nbytes)
    assert 1 not in pair.over  # nobody has read it
    await turn_until(lambda: (pair.poll(), 1 in pair.over and place == sent)[1])
    if not 0 < nbytes % PAYLOAD_LIMIT < LEND:
        assert pair.segment.heap.taken() == BOTH  # nothing was copied through the segment


async def test_a_small_fragment_is_not_lent(pair: Pair) -> None:
    place, _ = pair.recv(1, LEND - 1)
    sent = pair.send(1, LEND - 1)
    pair.woken.poll()  # it hears that there is a place
    assert 1 in pair.over
    await turn_until(lambda: (pair.poll(), place == sent)[1])


async def test_what_is_folded_comes_in_fragments(pair: Pair) -> None:
    got, done = bytearray(), []

    def fold(fragment: memoryview, offset: int) -> None:
        assert offset == len(got)
        assert len(fragment) <= FRAGMENT
        got.extend(fragment)

    pair.receiver.recv(KEY._replace(seq=1), MANY, Fold(fold), lambda: done.append(1))
    sent = pair.send(1, MANY)
    await turn_until(lambda: (pair.poll(), bool(done))[1])
    assert got == sent


async def test_what_is_cancelled_before_it_was_read_is_not_delivered(pair: Pair) -> None:
    place, _ = pair.recv(1, 2 * PAYLOAD_LIMIT)
    data = bytearray(contents(1, 2 * PAYLOAD_LIMIT))
    pair.sender.send(KEY._replace(seq=1), bytes(32), memoryview(data), lambda: pair.over.append(1))
    pair.woken.poll()  # it hears that there is a place
    pair.sender.cancel(KEY.context)
    data[:] = bytes(len(data))
    for _ in range(5):
        pair.poll()
    assert pair.over == [0]
    assert KEY._replace(seq=1) in pair.receiver._posted
    assert place == bytes(len(place))
    assert not pair.ends
    other = KEY._replace(context=2)  # the link goes on
    into = bytearray(MANY)
    pair.receiver.recv(other, MANY, Into(memoryview(into)), lambda: pair.over.append(2))
    sent = contents(2, MANY)
    pair.sender.send(other, bytes(32), memoryview(sent), lambda: None)
    await turn_until(lambda: (pair.poll(), 2 in pair.over)[1])
    assert into == sent


@pytest.mark.parametrize("how", ["cancelled", "killed"])
async def test_what_is_withdrawn_while_it_is_read_is_not_delivered(
    pair: Pair, reads: list[Callable[[], None]], how: str
) -> None:
    delivered: list[int] = []
    data = bytearray(contents(1, PAYLOAD_LIMIT))
    pair.receiver._arrived = lambda *_: None
    into = memoryview(bytearray(PAYLOAD_LIMIT))
    pair.receiver.recv(KEY._replace(seq=1), PAYLOAD_LIMIT, Into(into), lambda: delivered.append(1))
    reads.append(pair.sender.kill if how == "killed" else lambda: pair.sender.cancel(KEY.context))
    pair.sender.send(KEY._replace(seq=1), bytes(32), memoryview(data), lambda: None)
    await turn_until(lambda: (pair.poll(), not reads)[1])
    for _ in range(5):
        pair.poll()
    assert delivered == []


async def test_memory_that_others_cannot_read_is_copied(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "readable", lambda *_: False)
    place, _ = pair.recv(1, MANY)
    sent = pair.send(1, MANY)
    await turn_until(lambda: (pair.poll(), 1 in pair.over and place == sent)[1])


async def test_what_stands_and_cannot_be_read_ends_the_link(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Remote, "read", lambda *_: False)
    pair.recv(1, LEND)
    pair.send(1, LEND)
    await turn_until(lambda: (pair.poll(), bool(pair.ends))[1])
    assert "cannot be read from here" in pair.ends[0][2]


@pytest.mark.parametrize("first", ["sender", "receiver"])
async def test_what_is_lent_when_the_rings_are_given_up_arrives(pair: Pair, first: str) -> None:
    place, _ = pair.recv(1, MANY)
    sent = pair.send(1, MANY)
    pair.woken.poll()
    (pair.out if first == "sender" else pair.into).wake_by(None)
    await turn_until(lambda: (pair.poll(), 1 in pair.over and place == sent)[1])


async def test_closing_waits_until_what_is_lent_was_read(pair: Pair) -> None:
    place, _ = pair.recv(1, LEND)
    sent = pair.send(1, LEND)
    pair.woken.poll()
    closed: list[int] = []
    pair.sender.close(lambda: closed.append(1))
    assert not pair.out._ending.over
    await turn_until(lambda: (pair.poll(), bool(closed))[1])
    assert place == sent
    assert pair.ends == [("receiver", True, "")]


async def test_a_fragment_whose_receive_raises_is_returned_all_the_same(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_exception_handler", raised.append)

    def done() -> None:
        raise RuntimeError("done")

    into = memoryview(bytearray(LEND))
    pair.receiver.recv(KEY._replace(seq=1), LEND, Into(into), done)
    sent = pair.send(1, LEND)
    await turn_until(lambda: (pair.poll(), 1 in pair.over)[1])
    assert (into == sent, len(raised), pair.ends) == (True, 1, [])
    raised.clear()  # tracebacks keep what is mapped


async def test_nothing_is_lent_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "pays", lambda: False)
    pair = Pair()
    try:
        pair.peer.pid = os.getpid()
        await pair.meet()
        assert pair.out._rings.lender is None
        place, _ = pair.recv(1, MANY)
        sent = pair.send(1, MANY)
        await turn_until(lambda: (pair.poll(), 1 in pair.over and place == sent)[1])
    finally:
        pair.close()


# ── nonsense ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("word", [0, 1, 1 << 60])
async def test_what_was_not_lent_cannot_be_returned(pair: Pair, word: int) -> None:
    pair.into._sock.send(pack(Type.RETURNED, word=word))
    assert f"{word} fragments returned, of 0 that were lent" in await refused(pair)


async def test_nothing_is_lent_to_who_cannot_read_it() -> None:
    pair = Pair()
    try:
        await pair.meet()
        assert pair.out._rings.lender is None
        pair.recv(1, LEND)
        pair.out._sock.send(pack(Type.LENT, *KEY._replace(seq=1), nbytes=LEND, total=LEND, word=1 << 40))
        assert "and the sender's memory cannot be read" in await refused(pair)
    finally:
        pair.close()


async def test_nothing_is_returned_where_nothing_is_lent() -> None:
    pair = Pair()
    try:
        await pair.meet()
        pair.into._sock.send(pack(Type.RETURNED, word=1))
        assert "and nothing is lent" in await refused(pair)
    finally:
        pair.close()
