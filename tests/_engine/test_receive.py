"""Receives that have matched nothing, among others of their tag: nothing is lost, and the order is kept."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aiodist as dist
from aiodist import _engine
from aiodist.backends.base import complete
from aiodist.backends.host.held_up import ANY
from aiodist.backends.host.messages import Messages
from aiodist.backends.host.messenger import signature_of_bytes
from aiodist.base.errors import WireError
from aiodist.base.operations import Kind
from aiodist.base.types import Call, message_signature
from aiodist.group import ProcessGroup
from aiodist.net.wire.frame import pack_eager
from aiodist.testing import spmd
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from aiodist.transport import Handled
from tests.helpers import core_of
from tests.levels import COSTLY

pytestmark = pytest.mark.skipif(_engine.compiled is None, reason="needs the compiled engine")

LARGE = 9000  # bytes of an object that is offered
FLOATS, BYTES = np.dtype(np.float64), np.dtype(np.uint8)


class Group:
    """`Messages` of a group of 4, and what is told of it."""

    def __init__(self) -> None:
        self.let_go: list[tuple[int, int]] = []
        self.results: list[Any] = []
        self.posted: list[_engine.Receive] = []
        channels: Any = SimpleNamespace(
            loop=SimpleNamespace(call_soon=lambda call: call()),
            context=7,
            size=4,
            crowded=set(),
            guard=lambda step, *arguments: step(*arguments),
            group_rank=lambda rank: rank - 10 if 10 <= rank < 14 else None,
            incoming=lambda source: SimpleNamespace(
                let_go=lambda context, nbytes: self.let_go.append((source, nbytes))
            ),
        )
        self.messages = Messages(channels)
        assert _engine.compiled is not None
        members = {10 + source: source for source in range(4)}
        self.inbox = _engine.compiled.Inbox(self.messages, members, signature_of_bytes, complete, None, None)

    def receive(self, source: int, items: int = 3, tag: int = 5) -> tuple[_engine.Receive, Any]:
        """A receive of some floats, or of bytes (0 items) → it, and where they go."""
        work: Any = SimpleNamespace(_finish=self.results.append, _fail=self.results.append)
        place = np.zeros(items) if items else None
        like = None if place is None else prepared(source, place, tag)
        assert _engine.compiled is not None
        receive = _engine.compiled.Receive(
            self.inbox, work, source, tag, place, like, lambda got: got, self.posted.append
        )
        return receive, place

    def wait(self, receive: _engine.Receive) -> None:
        """Have a receive get the next message of its source and tag."""
        assert self.messages.nothing_waits(receive.tag)
        self.messages.next_messages[receive.tag] = receive

    def take(self, source: int, number: int, data: Any, tag: int = 5) -> int:
        """A message comes."""
        signature = message_signature(data.dtype, data.size, number)
        return self.messages.take(10 + source, 1 + tag, number, signature, memoryview(data.tobytes()))


def prepared(source: int, place: Any, tag: int) -> _engine.PreparedMessage:
    """What receives of such an array share."""
    assert _engine.compiled is not None
    signature = message_signature(place.dtype, place.size, 0)
    header = pack_eager(7, 1 + tag, 0, place.nbytes, signature)
    call = Call(Kind.recv, 0, place.dtype, place.shape, None, source)
    return _engine.compiled.PreparedMessage(call, None, None, header, None, source, tag, sealed=False)


def test_the_next_message_of_its_source_and_tag_is_its_own() -> None:
    group = Group()
    receive, place = group.receive(2)
    group.wait(receive)
    assert not group.messages.nothing_waits(5)
    assert group.messages.nothing_waits(6)
    assert group.take(2, 0, np.arange(3.0)) == Handled.NOW
    assert group.results == [2]
    assert list(place) == [0, 1, 2]
    assert group.messages.nothing_waits(5)
    assert group.let_go == []


def test_one_of_any_size_from_anybody_gets_bytes() -> None:
    group = Group()
    group.wait(group.receive(ANY, 0)[0])
    data = np.arange(9, dtype=np.uint8)
    assert group.take(3, 0, data) == Handled.NOW
    assert group.results == [(3, data.tobytes())]


@pytest.mark.parametrize(
    ("source", "number", "data"),
    [
        (1, 0, np.arange(3.0)),  # of another source
        (2, 1, np.arange(3.0)),  # it overtook another
        (2, 0, np.arange(4.0)),
        (2, 0, np.arange(3)),
    ],
)
def test_another_message_has_it_posted(source: int, number: int, data: Any) -> None:
    group = Group()
    receive, _ = group.receive(2)
    group.wait(receive)
    assert group.take(source, number, data) == Handled.KEPT
    assert group.posted == [receive]
    assert group.results == []


def test_an_offer_has_it_posted() -> None:
    group = Group()
    receive, _ = group.receive(2)
    group.wait(receive)
    group.messages.arrived(2, 6, 0, message_signature(FLOATS, 3, 0), 24)
    assert group.posted == []
    group.messages.arrived(2, 5, 0, message_signature(FLOATS, 3, 0), 24)
    assert group.posted == [receive]


def test_what_the_group_asks_about_is_posted() -> None:
    group = Group()
    for tag in (5, 6):
        group.wait(group.receive(2, tag=tag)[0])
    group.messages.post_waiting(7)
    assert group.posted == []
    group.messages.post_waiting(6)
    assert [receive.tag for receive in group.posted] == [6]
    group.messages.waiting()
    assert [receive.tag for receive in group.posted] == [6, 5]


def test_a_message_of_another_tag_leaves_it_alone() -> None:
    group = Group()
    receive, _ = group.receive(2)
    group.wait(receive)
    assert group.take(2, 0, np.arange(3.0), tag=6) == Handled.KEPT
    assert group.posted == []
    assert group.take(2, 0, np.arange(3.0)) == Handled.NOW


def test_what_came_before_its_receive_is_kept_for_it() -> None:
    group = Group()
    for number in range(2):
        assert group.take(2, number, np.full(3, 7.0 + number)) == Handled.KEPT
    receive, place = group.receive(2)
    assert group.messages.receive_here(receive)
    assert list(place) == [7] * 3
    assert group.let_go == [(2, 24)]
    assert group.messages.receive_here(group.receive(ANY)[0])
    assert group.results == [2, 2]
    assert group.messages.nothing_waits(5)


def test_a_receive_that_does_not_fit_what_is_here_gets_nothing() -> None:
    group = Group()
    group.take(2, 0, np.arange(3.0))
    for source, items in ((2, 4), (1, 3), (ANY, 2), (2, 0)):
        assert not group.messages.receive_here(group.receive(source, items)[0])
    assert group.messages.receive_here(group.receive(2)[0])


def test_a_message_that_overtook_another_waits_for_its_turn() -> None:
    group = Group()
    group.take(2, 1, np.arange(3.0))
    assert not group.messages.receive_here(group.receive(2)[0])
    group.take(2, 0, np.arange(3.0))
    assert group.messages.receive_here(group.receive(ANY)[0])


def test_what_is_taken_back_gets_nothing() -> None:
    group = Group()
    receive, place = group.receive(2)
    group.wait(receive)
    group.messages.abandon(receive)
    assert group.take(2, 0, np.arange(3.0)) == Handled.KEPT
    assert group.results == []
    assert not place.any()


def test_a_message_whose_receive_was_taken_back_in_its_turn_goes_to_the_next() -> None:
    group = Group()
    receive, _ = group.receive(2)
    group.wait(receive)
    group.take(2, 0, np.arange(3.0))
    group.messages.abandon(receive)
    assert not group.messages.nothing_waits(5)
    assert not group.messages.receive_here(group.receive(2)[0])  # what is posted gets it
    match = group.messages._matches.unowned(2, 5)
    assert match is not None
    assert (match.complete, match.number, match.signature) == (True, 0, message_signature(FLOATS, 3, 0))
    assert match.place.view(FLOATS).tolist() == [0, 1, 2]


def test_strangers_and_broken_groups_are_left_to_the_channel() -> None:
    group = Group()
    data, signature = memoryview(bytes(8)), message_signature(FLOATS, 1, 0)
    assert group.messages.take(99, 6, 0, signature, data) == Handled.NO
    group.messages.halt()
    assert group.take(2, 0, np.arange(3.0)) == Handled.NO
    assert not group.messages.nothing_waits(5)


def test_a_second_message_of_a_number_breaks_the_protocol() -> None:
    group = Group()
    group.take(2, 0, np.arange(3.0))
    with pytest.raises(WireError, match="a second message 0 of tag 5 from rank 12"):
        group.take(2, 0, np.arange(3.0))


def test_what_it_may_write_to_cannot_be_taken_away() -> None:
    group = Group()
    receive, place = group.receive(2)
    group.wait(receive)
    place.flags.writeable = False
    assert group.take(2, 0, np.arange(3.0)) == Handled.NOW
    assert group.results == [2]
    assert list(place) == [0, 1, 2]


def test_one_that_waits_while_a_message_is_handed_back_is_posted() -> None:
    group = Group()
    first, _ = group.receive(2)
    group.wait(first)
    group.take(2, 0, np.arange(3.0))
    waiting, _ = group.receive(2)
    group.wait(waiting)
    group.messages.abandon(first)
    assert group.posted == [waiting]


@pytest.mark.slow(COSTLY)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_whatever_is_received_and_taken_back_order_is_kept_and_nothing_is_lost(seed: int) -> None:
    """Two ranks send small and large objects with two tags. The third has several receives of each tag at
    once: from one or anybody, short or not; some lose patience. Where none does, of two receives that
    got messages of one sender, the one that was posted first got the earlier one. (Where one does whose
    message is on its way, that goes to the next, and another may have got a later one by then.)"""
    plan = random.Random(seed)
    impatient = plan.random() < 0.6
    each, tags = 10, 2
    large = {
        (rank, tag, number): plan.random() < 0.2
        for rank in (0, 1)
        for tag in range(2)
        for number in range(each)
    }

    async def send(pg: ProcessGroup) -> None:
        rng = random.Random(f"{seed} {pg.rank}")
        order = [tag for tag in range(tags) for _ in range(each)]
        rng.shuffle(order)
        numbers = [0] * tags
        works = []
        for tag in order:
            body = bytes(LARGE) if large[pg.rank, tag, numbers[tag]] else b""
            works.append(pg.send_object([pg.rank, numbers[tag], body], 2, tag, async_op=True))
            numbers[tag] += 1
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice([0, 0.001, 0.01]))
        for work in works:
            await work

    async def receive(pg: ProcessGroup, tag: int) -> None:
        rng = random.Random(f"{seed} {tag}")
        got: dict[int, tuple[int, int]] = {}  # by the receive's place among those posted
        asked = 0

        async def one(place: int, source: int | None) -> None:
            timeout = 1000 if rng.random() < 0.3 else None
            work: Any = pg.recv_object(source, tag, timeout=timeout)
            try:
                if impatient and rng.random() < 0.4:
                    sender, number, _ = await asyncio.wait_for(work, rng.choice([0.0001, 0.001, 0.01]))
                else:
                    sender, number, _ = await work
            except TimeoutError:
                return
            got[place] = (sender, number)

        async with asyncio.TaskGroup() as tasks:
            running: set[asyncio.Task[None]] = set()
            while len(got) < 2 * each:
                running = {task for task in running if not task.done()}
                missing = {rank: each - sum(sender == rank for sender, _ in got.values()) for rank in (0, 1)}
                if len(running) < min(3, sum(missing.values())):
                    # from a known one only where nobody else can take its last
                    known = [rank for rank in (0, 1) if missing[rank] > len(running)]
                    source = rng.choice([*known, None])
                    running.add(tasks.create_task(one(asked, source)))
                    asked += 1
                    await asyncio.sleep(0)  # it is posted
                else:
                    await asyncio.sleep(0.002)
        assert sorted(got.values()) == [(rank, number) for rank in (0, 1) for number in range(each)]
        for rank in (0, 1):
            numbers = [number for _, (sender, number) in sorted(got.items()) if sender == rank]
            assert impatient or numbers == sorted(numbers)

    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank < 2:
            await send(pg)
        else:
            await asyncio.gather(*(receive(pg, tag) for tag in range(tags)))

    run_virtual(run_cluster(3, main))


@pytest.mark.slow(COSTLY)
@spmd(transport="shm")
async def test_a_receive_that_waits_ends_with_its_peer(pg: ProcessGroup) -> None:
    if pg.rank == 0:
        await pg.send_object("the last", 1)
        return
    assert await pg.recv_object() == "the last"
    with pytest.raises(dist.PeerClosed):
        await pg.recv_object(0)
    with pytest.raises(dist.PeerClosed):  # also one that begins now
        await pg.recv_object(0)


@pytest.mark.slow(COSTLY)
@spmd(transport="shm")
async def test_drain_waits_for_what_is_begun_meanwhile(pg: ProcessGroup) -> None:
    if pg.rank == 0:
        await pg.recv_object(1, 7)
        await pg.send_object("a", 1, 1)
        await pg.recv_object(1, 8)
        await pg.send_object("b", 1, 2)
        return
    first = pg.recv_object(0, 1, async_op=True)
    drained = asyncio.create_task(pg.drain())
    await asyncio.sleep(0)
    second = pg.recv_object(0, 2, async_op=True)
    await pg.send_object("go", 0, 7)
    assert await first == "a"
    await asyncio.sleep(0)
    assert not drained.done()
    await pg.send_object("go on", 0, 8)
    await drained
    assert second.result() == "b"


@pytest.mark.slow(COSTLY)
@spmd(transport="shm")
async def test_a_closed_group_keeps_no_messages(pg: ProcessGroup) -> None:
    sub = await pg.new_group([0, 1])
    assert sub is not None
    if pg.rank == 0:
        for _ in range(7):
            await sub.send_object(bytes(8000), 1)
    await pg.barrier()
    backend: Any = core_of(sub).host
    await sub.aclose()
    assert not backend.messages.arrivals


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("limit", [None, 100])
@spmd(transport="shm")
async def test_what_is_handed_back_by_a_thread_goes_to_the_next(
    pg: ProcessGroup, limit: float | None
) -> None:
    """A receive is cancelled while a thread copies its message, and another waits when that is over."""
    if pg.rank == 0:
        with pytest.raises(dist.GroupBroken):
            await pg.send(np.ones(4_000_000), 1)
            await pg.recv_object(1)
        return
    backend: Any = core_of(pg).host
    open_matches = backend.messages._matches._open

    async def receive() -> None:
        await pg.recv(np.zeros((4_000_000, 2))[:, 0], 0)

    task = asyncio.create_task(receive())
    while not open_matches:  # noqa: ASYNC110
        await asyncio.sleep(0)
    (matches,) = open_matches.values()
    (match,) = matches.values()
    while not match.complete:  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    with pytest.raises(dist.CollectiveMismatch):  # it is not what this one receives
        await pg.recv(np.zeros(3), 0, timeout=limit)
