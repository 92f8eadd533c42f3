"""Point-to-point matching: in order by source and tag, and in posted order among receives."""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Callable
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.base import Operation
from aiodist.backends.host.channels import Channels
from aiodist.backends.host.held_up import ANY
from aiodist.backends.host.messages import Messages
from aiodist.base.types import Call, Kind
from aiodist.group import ProcessGroup
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from aiodist.transport.base import Into, Key
from aiodist.transport.memory import MemoryNetwork


class Handle(SimpleNamespace):
    """What a receive needs of its Work."""


class Bench:
    """A `Messages` over channels that record what is posted and sent, and a thread run by hand."""

    rank = 3
    size = 5
    context = 77
    unfit = Channels.unfit

    def __init__(self) -> None:
        self.posted: dict[tuple[int, Key], tuple[memoryview, Callable[[], None]]] = {}
        self.sent: list[tuple[int, Key]] = []
        self.mismatches: list[dict[int, str]] = []
        self.jobs: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self.slow = False
        self.reports: Any = SimpleNamespace(peer_mismatch=self.mismatches.append)
        self.turn: list[Callable[[], None]] | None = (
            None  # what the next turn calls; None: it is called at once
        )
        self.loop: Any = SimpleNamespace(call_soon=self._soon)
        self.off_loop = self._run
        self.drive = lambda work, channel: None
        self.take_back: dict[int, Callable[[], None]] = {}
        self.ready: set[Key] = set()  # the sender knows that there is a place
        self.targets: dict[int, Any] = {}
        self.results: dict[int, int] = {}
        self.numbers = count()
        self.crowded: set[int] = set()
        self.shut: set[int] = set()
        self.asked: list[tuple[int, Key]] = []
        self.messages = Messages(self)  # type: ignore[arg-type]

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        if self.turn is None:
            call(*arguments)
        else:
            self.turn.append(partial(call, *arguments))

    def _run(self, cost: float, job: Callable[[], None], done: Callable[[], None]) -> bool:
        if self.slow:
            self.jobs.append((job, done))
            return False
        job()
        return True

    def incoming(self, source: int) -> Any:
        def recv(key: Key, nbytes: int, sink: Into, done: Callable[[], None], signature: bytes = b"") -> bool:
            self.posted[source, key] = (sink.view, done)
            return False

        def withdraw(key: Key) -> bool:
            return key not in self.ready and self.posted.pop((source, key), None) is not None

        def redirect(key: Key, into: Into, moves: bool) -> None:
            self.posted[source, key] = into.view, self.posted[source, key][1]

        return SimpleNamespace(
            recv=recv,
            post_again=recv,
            park=lambda key: self.posted.pop((source, key), None) is not None,
            withdraw=withdraw,
            redirect=redirect,
            ask=lambda key: self.asked.append((source, key)),
        )

    def guard(self, step: Callable[..., object], *arguments: Any) -> None:
        step(*arguments)

    def outgoing(self, peer: int) -> Any:
        def send(
            key: Key, signature: bytes, data: memoryview, done: Callable[[], None], sealed: bool
        ) -> bool:
            self.sent.append((peer, key))
            return True

        return SimpleNamespace(send=send)

    # What a test does.

    def operation(self, kind: Kind, peer: int, number: int, tag: int, items: int) -> tuple[int, Operation]:
        """A send or receive, and the name under which its result is noted."""
        name = next(self.numbers)
        array = np.zeros(2 * items)[::2] if self.slow else np.zeros(items)
        call = Call(kind, number, array.dtype, array.shape, None, peer)
        source, target = (array, None) if kind is Kind.send else (None, array)
        work: Any = Handle(
            _take_back=None,  # somebody has its result, or will
            _line=str,
            _finish=lambda result: self.results.__setitem__(name, result),
            _taken_back_by=lambda give_up, receive: self.take_back.__setitem__(
                name, partial(give_up, receive)
            ),
            done=lambda: name in self.results,
        )
        return name, Operation(call, work, source, target, None, lambda _: None, peer, tag, range(10, 20))

    def recv(self, peer: int, tag: int = 0, items: int = 2) -> int:
        """Post a receive → its name."""
        name, operation = self.operation(Kind.recv, peer, 0, tag, items)
        self.targets[name] = operation.target
        self.messages.recv(operation)
        return name

    def send(self, peer: int, number: int, tag: int = 0) -> None:
        """Start a send."""
        self.messages.send(self.operation(Kind.send, peer, number, tag, 2)[1])

    def arrive(self, source: int, number: int, tag: int = 0, items: int = 2) -> None:
        """A message is offered."""
        signature = Call(Kind.send, number, np.dtype(np.float64), (items,)).signature
        self.messages.arrived(source, tag, number, signature, items * 8)

    def deliver(self, source: int, number: int, tag: int = 0) -> None:
        """The bytes of a matched message are in."""
        place, done = self.posted.pop((source, Key(self.context, 1 + tag, number, 0)))
        place.cast("d")[:] = array("d", [100 * source + number] * (len(place) // 8))
        done()


def test_known_source_claims_its_number_at_once() -> None:
    bench = Bench()
    first, second = bench.recv(1), bench.recv(1)
    assert {key.seq for _, key in bench.posted} == {0, 1}
    bench.arrive(1, 0)
    bench.arrive(1, 1)
    bench.deliver(1, 1)
    bench.deliver(1, 0)
    assert bench.results == {first: 11, second: 11}
    assert not bench.mismatches


def test_nothing_is_kept_of_a_group_that_broke() -> None:
    bench = Bench()
    kept = []
    for peer, tag in [(1, 0), (ANY, 1), (2, 1)]:  # posted; in a queue; behind that
        _, operation = bench.operation(Kind.recv, peer, 0, tag, 2)
        assert operation.target is not None
        kept.append(weakref.ref(operation.target))
        bench.messages.recv(operation)
        del operation
    bench.arrive(4, 0, tag=2)
    bench.messages.halt()
    bench.posted.clear()  # as an endpoint does when a context is cancelled
    bench.messages.forget()
    bench.take_back.clear()  # as works do that have failed
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3
    assert not bench.messages.arrivals


def test_any_source_claims_what_came_first() -> None:
    bench = Bench()
    name = bench.recv(ANY)
    assert not bench.posted
    bench.arrive(2, 0)
    bench.arrive(1, 0)
    bench.deliver(2, 0)
    assert bench.results == {name: 12}
    other = bench.recv(ANY)
    bench.deliver(1, 0)
    assert bench.results[other] == 11


def test_among_receives_that_could_take_a_message_the_first_posted_gets_it() -> None:
    bench = Bench()
    anybody, known = bench.recv(ANY), bench.recv(1)
    assert not bench.posted  # the known one waits behind
    bench.arrive(1, 0)
    bench.arrive(1, 1)
    bench.deliver(1, 0)
    bench.deliver(1, 1)
    assert list(bench.results) == [anybody, known]


def test_known_source_behind_any_takes_what_any_cannot_have() -> None:
    bench = Bench()
    bench.recv(ANY)
    known, later = bench.recv(1), bench.recv(2)
    bench.arrive(2, 0)  # goes to ANY
    assert [(source, key.seq) for source, key in bench.posted] == [(2, 0), (1, 0), (2, 1)]
    bench.arrive(2, 1)
    bench.deliver(2, 1)
    bench.deliver(1, 0)
    assert set(bench.results) == {known, later}


def test_tags_do_not_meet() -> None:
    bench = Bench()
    name = bench.recv(ANY, tag=5)
    bench.arrive(1, 0, tag=4)
    assert not bench.posted
    bench.arrive(1, 0, tag=5)
    bench.deliver(1, 0, tag=5)
    assert bench.results == {name: 11}


def test_a_flood_of_messages_out_of_turn_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of them, and each receive, would cost a look at all of them and at all that wait."""
    bench = Bench()
    names = [bench.recv(ANY), bench.recv(ANY), bench.recv(2)]
    looks = []
    match = bench.messages._match

    def look(source: int, tag: int) -> None:
        looks.append(source)
        match(source, tag)

    monkeypatch.setattr(bench.messages, "_match", look)
    for number in range(1, 1000):
        bench.arrive(1, number)
    assert not looks
    bench.arrive(4, 0)
    bench.arrive(1, 0)
    assert [(source, key.seq) for source, key in bench.posted] == [(4, 0), (1, 0), (2, 0)]
    bench.arrive(2, 0)
    other = bench.recv(ANY)
    for source, number in ((4, 0), (1, 0), (2, 0), (1, 1)):
        bench.deliver(source, number)
    assert bench.results == {names[0]: 14, names[1]: 11, names[2]: 12, other: 11}


def test_a_receive_costs_the_same_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    looks = []
    serve = bench.messages._serve

    def look(operation: Operation, blocked: bool) -> bool:
        looks.append(operation)
        return serve(operation, blocked)

    monkeypatch.setattr(bench.messages, "_serve", look)
    names = [bench.recv(ANY) for _ in range(500)]
    for number in range(500):
        bench.arrive(1, number)
        bench.deliver(1, number)
    assert [bench.results[name] for name in names] == [11] * 500
    assert len(looks) <= 3 * 500


def test_what_a_crowd_may_have_hidden_is_asked_for() -> None:
    bench = Bench()
    bench.recv(ANY, tag=5)
    bench.recv(1, tag=6)  # is posted: its message finds it
    assert not bench.asked
    bench.crowded = {1, 2}
    bench.messages.ask()
    assert sorted(bench.asked) == [(source, Key(77, 6, 0, 0)) for source in (1, 2)]
    bench.asked.clear()
    bench.arrive(2, 0, tag=5)
    assert not bench.asked  # nobody waits any more
    bench.recv(1, tag=5)
    assert not bench.asked
    bench.recv(ANY, tag=5)
    bench.recv(2, tag=5)  # waits behind
    assert (2, Key(77, 6, 1, 0)) in bench.asked and (1, Key(77, 6, 1, 0)) in bench.asked
    assert {key.seq for _, key in bench.asked} == {1}


@pytest.mark.parametrize("peer", [1, ANY])
def test_message_that_overtook_another_waits_for_its_turn(peer: int) -> None:
    # A large strided tensor is staged in the sender's thread; the next, small one goes at once.
    bench = Bench()
    bench.arrive(1, 1, items=3)
    bench.arrive(1, 0, items=2)
    first, second = bench.recv(peer, items=2), bench.recv(peer, items=3)
    assert not bench.mismatches
    bench.deliver(1, 0)
    bench.deliver(1, 1)
    assert list(bench.results) == [first, second]


@pytest.mark.parametrize("peer", [1, ANY])
def test_message_that_overtook_another_and_the_receives_between(peer: int) -> None:
    bench = Bench()
    bench.arrive(1, 1, items=3)
    first, second = bench.recv(peer, items=2), bench.recv(peer, items=3)
    bench.arrive(1, 0, items=2)
    assert not bench.mismatches
    bench.deliver(1, 0)
    bench.deliver(1, 1)
    assert list(bench.results) == [first, second]


@pytest.mark.parametrize("posted_first", [True, False])
def test_disagreement_is_told_with_both_sides(posted_first: bool) -> None:
    bench = Bench()
    if posted_first:
        bench.recv(1, items=2)
    bench.arrive(1, 0, items=5)
    if not posted_first:
        bench.recv(1, items=2)
    assert bench.mismatches == [
        {1: "send(float64[5], dst=3, tag=0, number=0)", 3: "recv(float64[2], src=1, tag=0, number=0)"}
    ]
    assert not bench.results


def test_nothing_stays_of_a_tag_that_is_used_no_more() -> None:
    bench = Bench()
    for tag in range(100):
        for peer in (ANY, 1):
            bench.recv(peer, tag=tag)
        for number in range(3):
            bench.arrive(1, number, tag=tag)
        bench.recv(1, tag=tag)
        for number in range(3):
            bench.deliver(1, number, tag=tag)
    assert len(bench.results) == 300
    assert not bench.messages.queues
    assert not bench.messages.arrivals


@pytest.mark.parametrize("behind", [1, ANY])
def test_nothing_is_received_after_a_disagreement(behind: int) -> None:
    """It breaks the group: receives that waited behind it have failed, and their arrays are the user's."""
    bench = Bench()
    bench.reports.peer_mismatch = lambda said: bench.messages.halt()
    bench.recv(ANY, items=9)
    bench.recv(behind)
    bench.recv(1)
    bench.arrive(1, 1)
    bench.arrive(1, 2)
    bench.arrive(1, 0)  # the first two overtook it
    assert not bench.posted


def test_receives_for_which_nothing_has_come() -> None:
    bench = Bench()
    bench.recv(ANY)
    bench.recv(1)
    bench.recv(2, tag=5)
    bench.arrive(4, 0)
    waiting = bench.messages.waiting()
    assert {(operation.peer, operation.tag) for operation in waiting} == {(1, 0), (2, 5)}
    bench.recv(ANY)
    bench.arrive(1, 0)
    assert [operation.peer for operation in bench.messages.waiting()] == [2, ANY]


def test_nothing_is_sent_that_was_still_copied_when_the_group_ended() -> None:
    bench = Bench()
    bench.slow = True
    bench.send(1, 0)
    bench.messages.halt()
    [(job, done)] = bench.jobs
    job()
    done()
    assert not bench.sent


def test_send_keeps_its_number_while_it_is_staged() -> None:
    bench = Bench()
    bench.slow = True
    bench.send(1, 0)
    bench.slow = False
    bench.send(1, 1)
    assert [key.seq for _, key in bench.sent] == [1]
    for job, done in bench.jobs:
        job()
        done()
    assert [key.seq for _, key in bench.sent] == [1, 0]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 4))
def test_each_message_arrives_once_in_order_by_source(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    network = MemoryNetwork(delay=lambda src, dst: float(rng.exponential(0.001)))
    counts = [int(n) for n in rng.integers(0, 6, size)]
    sizes = rng.integers(1, 3000, (size, 6))  # eager and offered, mixed

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            works = [
                pg.send(np.full(int(sizes[pg.rank, number]), pg.rank * 100 + number), 0, async_op=True)
                for number in range(counts[pg.rank])
            ]
            for work in works:
                await work
            return
        # Receives say how long the message is: so each knows its source, in a random interleaving.
        order = [rank for rank in range(1, pg.size) for _ in range(counts[rank])]
        rng.shuffle(order)
        numbers = dict.fromkeys(range(pg.size), 0)
        for source in order:
            tensor = np.zeros(int(sizes[source, numbers[source]]), np.int64)
            assert await pg.recv(tensor, source) == source
            assert (tensor == source * 100 + numbers[source]).all()
            numbers[source] += 1

    run_virtual(run_cluster(size, main, network=network))


async def test_any_source_gets_each_message_once_in_order_by_source() -> None:
    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            for number in range(5):
                await pg.send(np.array([pg.rank, number]), 0)
            return
        seen: dict[int, list[int]] = {1: [], 2: [], 3: []}
        works = []
        for _ in range(15):
            tensor = np.zeros(2, np.int64)
            works.append((tensor, pg.recv(tensor, async_op=True)))
        for tensor, work in works:
            assert await work == tensor[0]
            seen[int(tensor[0])].append(int(tensor[1]))
        assert seen == {rank: [0, 1, 2, 3, 4] for rank in (1, 2, 3)}

    await run_cluster(4, main)


# ── receives that are taken back ─────────────────────────────────────────────────────────────────────


def test_the_number_of_a_receive_that_is_taken_back_is_claimed_again() -> None:
    bench = Bench()
    first = bench.recv(1)
    bench.take_back[first]()
    assert not bench.posted
    second = bench.recv(1)
    bench.arrive(1, 0)
    bench.deliver(1, 0)
    assert bench.results == {second: 11}
    assert list(bench.targets[second]) == [100, 100]


@pytest.mark.parametrize("ready", [(), (0,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("announced", [0, 1, 2, 3])
def test_later_receives_move_up(ready: tuple[int, ...], announced: int) -> None:
    """However much their senders know."""
    bench = Bench()
    bench.ready = {Key(bench.context, 1, number, 0) for number in ready}
    names = [bench.recv(1) for _ in range(3)]
    for number in range(announced):
        bench.arrive(1, number)
    bench.take_back[names[0]]()
    last = bench.recv(1)
    for number in range(announced, 3):
        bench.arrive(1, number)
    for number in range(3):
        bench.deliver(1, number)
    assert bench.results == {names[1]: 11, names[2]: 11, last: 11}
    assert [bench.targets[name][0] for name in (*names, last)] == [0, 100, 101, 102]
    assert not bench.messages._matches._open and not bench.messages._matches.unowned_counts


@pytest.mark.parametrize("peer", [1, ANY])
def test_a_message_that_is_on_its_way_goes_to_the_next_receive(peer: int) -> None:
    bench = Bench()
    bench.arrive(1, 0)
    bench.arrive(1, 1)
    first = bench.recv(peer)
    bench.take_back[first]()
    second, third = bench.recv(peer), bench.recv(1)
    bench.deliver(1, 1)
    bench.deliver(1, 0)
    assert bench.results == {second: 11, third: 11}
    assert [bench.targets[name][0] for name in (first, second, third)] == [0, 100, 101]


def test_a_message_that_was_given_and_not_told_goes_to_the_next_receive() -> None:
    bench = Bench()
    first, waiting = bench.recv(1), bench.recv(ANY, tag=5)
    bench.arrive(1, 0)
    bench.deliver(1, 0)
    bench.arrive(2, 0, tag=5)
    bench.deliver(2, 0, tag=5)
    for name in (first, waiting):
        bench.take_back[name]()
        bench.targets[name][:] = -1  # it is the user's again
    assert bench.results.pop(first) == 11
    second, other = bench.recv(1), bench.recv(ANY, tag=5)
    assert bench.results[second] == 11 and bench.results[other] == 12
    assert list(bench.targets[second]) == [100, 100] and list(bench.targets[other]) == [200, 200]


def test_what_nobody_was_told_of_and_is_taken_back_goes_to_anybody() -> None:
    """A message that bore the expected signature was in its receive before anybody heard of it."""
    bench = Bench()
    first = bench.recv(1)
    bench.deliver(1, 0)
    bench.take_back[first]()
    anybody = bench.recv(ANY)
    assert bench.results[anybody] == 11


def test_a_receive_that_is_taken_back_holds_nobody_up() -> None:
    bench = Bench()
    anybody, known = bench.recv(ANY), bench.recv(1)
    assert not bench.posted
    bench.take_back[anybody]()
    assert [(source, key.seq) for source, key in bench.posted] == [(1, 0)]
    bench.arrive(1, 0)
    bench.deliver(1, 0)
    assert bench.results == {known: 11}


def test_a_message_that_is_left_goes_to_the_receive_that_was_posted_first() -> None:
    bench = Bench()
    bench.ready = {Key(bench.context, 1, 0, 0)}
    first = bench.recv(1)
    bench.take_back[first]()  # the sender knows of its place
    anybody, known = bench.recv(ANY), bench.recv(1)
    bench.arrive(1, 0)
    bench.arrive(1, 1)
    bench.deliver(1, 0)
    bench.deliver(1, 1)
    assert bench.results == {anybody: 11, known: 11}
    assert [bench.targets[name][0] for name in (anybody, known)] == [100, 101]


def test_a_message_that_is_left_goes_to_a_receive_that_waits_already() -> None:
    bench = Bench()
    first, anybody = bench.recv(1), bench.recv(ANY)
    bench.arrive(1, 0)
    bench.take_back[first]()
    bench.deliver(1, 0)
    assert bench.results == {anybody: 11}
    assert list(bench.targets[anybody]) == [100, 100]


@pytest.mark.parametrize("ready", [(), (0, 1)])
def test_a_receive_that_moves_up_to_a_message_of_another_size_is_posted_again(ready: tuple[int, ...]) -> None:
    """Also where the sender knew the size that was posted first."""
    bench = Bench()
    bench.ready = {Key(bench.context, 1, number, 0) for number in ready}
    first, second = bench.recv(1, items=2), bench.recv(1, items=5)
    bench.take_back[first]()
    bench.arrive(1, 0, items=5)
    bench.deliver(1, 0)
    assert bench.results == {second: 11}
    assert list(bench.targets[second]) == [100] * 5


def test_a_receive_that_moves_up_to_a_message_that_does_not_fit_says_so() -> None:
    bench = Bench()
    first = bench.recv(1, items=2)
    bench.recv(1, items=5)
    bench.arrive(1, 0, items=2)
    bench.take_back[first]()
    assert bench.mismatches == [
        {1: "send(float64[2], dst=3, tag=0, number=0)", 3: "recv(float64[5], src=1, tag=0, number=0)"}
    ]


def test_a_strided_receive_that_is_taken_back_while_it_is_copied_keeps_its_message() -> None:
    bench = Bench()
    bench.slow = True
    first = bench.recv(1)
    bench.arrive(1, 0)
    bench.deliver(1, 0)
    [(job, done)] = bench.jobs
    bench.take_back[first]()
    second = bench.recv(1)
    job()
    done()
    bench.jobs.pop(0)
    assert not bench.results
    for job, done in bench.jobs:
        job()
        done()
    assert bench.results == {second: 11}
    assert list(bench.targets[second]) == [100, 100]


def test_a_number_is_not_claimed_again_where_a_later_message_has_overtaken_it() -> None:
    bench = Bench()
    first, second = bench.recv(1), bench.recv(1)
    bench.arrive(1, 1)
    bench.deliver(1, 1)
    bench.take_back[first]()
    third, fourth = bench.recv(1), bench.recv(1)
    bench.arrive(1, 0)
    bench.arrive(1, 2)
    bench.deliver(1, 0)
    bench.deliver(1, 2)
    assert bench.results == {second: 11, third: 11, fourth: 11}
    assert [bench.targets[name][0] for name in (second, third, fourth)] == [101, 100, 102]
