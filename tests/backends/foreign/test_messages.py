"""Messages of foreign engines: in order, without engine where there is nothing to carry, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.base import Array, Operation
from aiodist.backends.foreign.messages import ForeignMessages
from aiodist.backends.foreign.task import Task, prepare
from aiodist.backends.inner import InnerOperation
from aiodist.base.types import Call, Kind
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster, run_virtual
from tests.backends.foreign.postbox import BesidePostbox, PostboxEngine

for made in (PostboxEngine, BesidePostbox):
    dist.register_backend(made.name, made)

ENGINES = pytest.mark.parametrize("backend", [PostboxEngine.name, BesidePostbox.name])


class Rank:
    """One rank of two, whose engine and envelopes go nowhere: the test says when what has happened."""

    def __init__(self, *, ready: bool) -> None:
        self.stopped = False
        self.channels: Any = SimpleNamespace(rank=0, size=2, guard=lambda step, *given: step(*given))
        self.carried: list[tuple[str, int]] = []
        self.posted: list[InnerOperation] = []
        self.filling: list[Callable[[], None]] = []
        self.ended: list[Any] = []
        self.engine: Any = SimpleNamespace(
            ready=ready,
            greets=0,
            greeting=lambda peer: b"",
            greeted=lambda peer, greeting: None,
            prepare=lambda operation: prepare(operation, 0, 2),
            send=lambda task, peer, number, done: self.carried.append(("send", number)),
            recv=lambda task, peer, number, done: self.carried.append(("recv", number)),
        )
        level: Any = SimpleNamespace(backend=SimpleNamespace(submit=self.posted.append))
        self.messages = ForeignMessages(self, level)  # type: ignore[arg-type]

    def fill(self, task: Task, done: Callable[[], None]) -> None:
        self.filling.append(done)

    def drain(self, task: Task, done: Callable[[], None]) -> None:
        done()

    def operation(self, kind: Kind, array: Array) -> Operation:
        """A message to or from rank 1."""
        sends = kind is Kind.send
        call = Call(kind, 0, array.dtype, array.shape, None, 1)
        work: Any = SimpleNamespace(_finish=self.ended.append)
        source, target = (array, None) if sends else (None, array)
        return Operation(call, work, source, target, "over", lambda _: None, 1, senders=(0, 1))

    def is_ready(self, posted: InnerOperation, number: int) -> None:
        """Rank 1 has begun to receive a message."""
        assert isinstance(posted.target, np.ndarray)
        posted.target[:] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
        posted.succeed()


def words(rank: Rank) -> list[InnerOperation]:
    """The internal receives of a sender."""
    return [check for check in rank.posted if check.call.kind is Kind.recv]


def test_sends_begin_in_the_order_of_the_receives_whatever_is_filled_first() -> None:
    rank = Rank(ready=True)
    for count in (3, 4, 5):
        rank.messages.send(rank.operation(Kind.send, np.arange(count)))
    for posted, number in zip(words(rank), (1, 0, 2), strict=True):
        rank.is_ready(posted, number)
    second, first, third = rank.filling[1], rank.filling[0], rank.filling[2]
    third()
    second()
    assert rank.carried == []
    first()
    assert rank.carried == [("send", 1), ("send", 0), ("send", 2)]


def test_ready_messages_count_in_their_order_whichever_comes_first() -> None:
    rank = Rank(ready=True)
    for count in (3, 4):
        rank.messages.send(rank.operation(Kind.send, np.arange(count)))
    first, second = words(rank)
    rank.is_ready(second, 0)
    rank.filling.pop()()
    assert rank.carried == []
    rank.is_ready(first, 1)
    rank.filling.pop()()
    assert rank.carried == [("send", 1), ("send", 0)]


@pytest.mark.parametrize("ready", [False, True])
def test_engine_has_no_part_in_a_message_without_elements(ready: bool) -> None:
    sender = Rank(ready=ready)
    sender.messages.send(sender.operation(Kind.send, np.zeros(0)))
    if ready:
        sender.is_ready(words(sender)[0], 0)
    else:
        sender.posted[0].succeed()
    assert sender.ended == []
    sender.filling.pop()()
    assert (sender.carried, sender.ended) == ([], ["over"])

    envelope = next(check for check in sender.posted if check.call.kind is Kind.send)
    receiver = Rank(ready=ready)
    receiver.messages.recv(receiver.operation(Kind.recv, np.zeros(0)))
    (posted,) = receiver.posted
    assert isinstance(posted.target, np.ndarray) and isinstance(envelope.source, np.ndarray)
    posted.target[:] = envelope.source
    posted.result = 1
    posted.succeed()
    assert (receiver.carried, receiver.ended) == ([], [1])
    assert len(receiver.posted) == 1 + ready  # the sender waits for its ready message all the same


@pytest.mark.parametrize("ready", [False, True])
def test_nothing_begins_once_the_group_has_broken(ready: bool) -> None:
    rank = Rank(ready=ready)
    rank.messages.send(rank.operation(Kind.send, np.arange(3)))
    if ready:
        rank.is_ready(words(rank)[0], 0)
    else:
        rank.posted[0].succeed()
    rank.stopped = True
    rank.filling.pop()()
    before = len(rank.posted)
    rank.messages.send(rank.operation(Kind.send, np.arange(3)))
    rank.messages.recv(rank.operation(Kind.recv, np.arange(3)))
    assert (rank.carried, rank.ended, len(rank.posted)) == ([], [], before)


def test_receive_does_not_begin_where_saying_so_broke_the_group() -> None:
    rank = Rank(ready=True)
    rank.messages.recv(rank.operation(Kind.recv, np.arange(3)))
    sender = Rank(ready=True)
    sender.messages.send(sender.operation(Kind.send, np.arange(3)))
    (posted,) = rank.posted
    assert isinstance(posted.target, np.ndarray)
    posted.target[:] = sender.posted[1].source
    posted.result = 1

    def breaks(check: InnerOperation) -> None:
        rank.stopped = True

    rank.posted.clear()
    level: Any = rank.messages._level
    level.backend.submit = breaks
    posted.succeed()
    assert rank.carried == []


@ENGINES
async def test_messages_without_elements_keep_their_places(backend: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        counts = (0, 3, 0, 0, 2)
        if pg.rank == 0:
            sent = [pg.send(np.arange(n) + 10 * i, 1, i % 2, async_op=True) for i, n in enumerate(counts)]
            await asyncio.gather(*sent)
        else:
            for tag in (1, 0):
                for i in range(tag, len(counts), 2):
                    into = np.zeros(counts[i], np.int64)
                    assert await pg.recv(into, None if i else 0, tag) == 0
                    assert np.array_equal(into, np.arange(counts[i]) + 10 * i)

    await run_cluster(2, main, backend=backend)


@ENGINES
async def test_peer_that_has_closed_is_named(backend: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 1:
            return
        with pytest.raises(dist.PeerLost) as caught:
            await pg.recv(np.zeros(3), 1)
        assert caught.value.ranks == (1,)
        assert "without sending" in str(caught.value)

    await run_cluster(2, main, backend=backend)


@ENGINES
@pytest.mark.parametrize("before", [False, True])
def test_peer_that_has_closed_this_group_and_works_on_is_named(backend: str, before: bool) -> None:
    async def main(pg: ProcessGroup) -> None:
        group = await pg.new_group()
        assert group is not None
        if pg.rank == 1:
            if before:
                await group.send(np.arange(3.0), 0)
            await group.aclose()
        else:
            if before:
                await group.recv(np.zeros(3), 1)
            with pytest.raises(dist.PeerLost, match="without sending") as caught:
                await group.recv(np.zeros(3), 1)
            assert caught.value.ranks == (1,)
        await pg.barrier()

    run_virtual(run_cluster(2, main, backend=backend))


async def test_send_to_a_peer_that_has_closed_does_not_wait_for_its_ready_message() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank == 0:
            with pytest.raises(dist.PeerLost) as caught:
                await pg.send(np.arange(3), 1)
            assert caught.value.ranks == (1,)
            assert "without receiving" in str(caught.value)

    await run_cluster(2, main, backend=BesidePostbox.name)


@ENGINES
@pytest.mark.parametrize("kind", ["send", "recv"])
async def test_abort_ends_messages_that_wait(backend: str, kind: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        await pg.barrier()
        if pg.rank == 1:
            pg.abort("enough")
            return
        works = [getattr(pg, kind)(np.arange(3.0), 1, async_op=True) for _ in range(2)]
        collective = pg.all_reduce(np.arange(3.0), async_op=True)
        with pytest.raises(dist.GroupAborted, match="enough"):
            await collective
        for work in works:
            if work.exception() is not None:
                with pytest.raises(dist.GroupAborted, match="enough"):
                    await work
        if kind == "recv" or backend == BesidePostbox.name:
            assert all(work.exception() for work in works)

    await run_cluster(2, main, backend=backend)


@ENGINES
def test_a_send_is_received_after_its_group_was_closed(backend: str) -> None:
    async def main(pg: ProcessGroup) -> None:
        group: Any = await pg.new_group()
        await group.barrier()
        if pg.rank == 0:
            group.send(np.arange(5.0), 1, async_op=True)
        else:
            await asyncio.sleep(1)
            place = np.zeros(5)
            assert await group.recv(place, 0) == 0
            assert np.array_equal(place, np.arange(5.0))
        await group.aclose()
        await pg.barrier()

    run_virtual(run_cluster(2, main, backend=f"cpu:{backend}"))
