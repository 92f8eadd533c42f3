"""What waits goes in one order, and all that fits is sent, whatever makes room for it."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.group.services import connection, under_way
from aiodist.group.services.asking import Asked
from aiodist.group.services.connection import Connection
from aiodist.group.services.outcomes import Outcome
from aiodist.group.services.queue import Queue
from aiodist.group.services.way import CallWay
from aiodist.net.wire import calls
from aiodist.net.wire.calls import ASKS, Says
from aiodist.testing import run_virtual
from aiodist.transport.line import Line
from tests.group.services.narrow import Narrow, NarrowLine
from tests.levels import COSTLY


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=60))
def test_the_order_of_what_waits(steps: list[tuple[int, int]]) -> None:
    """Messages wait in the order in which they began, calls in that in which they are bytes."""
    queue: Queue[int] = Queue()
    begun, messages = list[int](), list[int]()  # by number; those of the first are no bytes yet

    def first_goes() -> None:
        if queue.waiting:
            first = next(iter(queue.waiting))
            queue.leave(first)
            if first in messages:
                messages.remove(first)

    for number, (what, which) in enumerate(steps):
        match what:
            case 0:
                queue.begin(number)
                begun.append(number)
                messages.append(number)
            case 1:
                queue.put(number, message=True)
                messages.append(number)
            case 2:
                queue.put(number, message=False)
            case 3 if begun:
                queue.put(begun.pop(which % len(begun)), message=True)
            case 4 if messages:
                left = messages.pop(which % len(messages))
                queue.leave(left)
                queue.leave(left)
                if left in begun:
                    begun.remove(left)
            case 5:
                first_goes()
        ready = [one for one in messages if not begun or one < min(begun)]
        assert [one for one in queue.waiting if one in messages] == ready
    for one in begun:
        queue.leave(one)
    assert not queue.messages
    assert [one for one in queue.waiting if one in messages] == [one for one in messages if one not in begun]


class There:
    """The other process: it answers when it is told to.

    Attributes:
        messages: the numbers of those that came.
    """

    def __init__(self, network: Narrow) -> None:
        self.messages: list[int] = []
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._open: list[int] = []

    async def dial(self) -> Line:
        """A line to it."""
        for _ in range(self._network.rng.randrange(3)):
            await asyncio.sleep(0)
        if self._network.refused:
            self._network.refused -= 1
            raise ConnectionRefusedError("refused")
        mine, theirs = (NarrowLine(self._loop, self._network, end, 1 - end) for end in (0, 1))
        mine.other, theirs.other = theirs, mine
        self._network.lines.append(mine)
        self._open.clear()
        self._connection = Connection(self._loop, theirs, self._take, self._ended, lambda: None)
        return mine

    def answer(self) -> None:
        """Answer one of the calls."""
        if self._open and self._connection is not None:
            number = self._open.pop(self._network.rng.randrange(len(self._open)))
            self._connection.send(calls.frame(Says.RESULT, number))

    def end(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.kill()

    def _take(self, kind: int, number: int, body: bytes | bytearray) -> None:
        if kind in ASKS:
            if kind == Says.MESSAGE:
                self.messages.append(int.from_bytes(calls.read_request(body)[2][:4], "big"))
            self._open.append(number)
        elif kind == Says.CANCEL and number in self._open:
            self._open.remove(number)
            assert self._connection is not None
            self._connection.send(calls.text_frame(Says.DROPPED, number, "cancelled"))
        elif kind == Says.CANCEL:
            assert self._connection is not None
            self._connection.forget(number)

    def _ended(self, _why: object) -> None:
        self._open.clear()


@pytest.mark.slow(COSTLY)
@given(st.integers(0, 1 << 32), st.integers(10, 120))
def test_all_that_fits_is_sent_at_each_quiet_moment(seed: int, steps: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "HIGH", 20_000)
        patch.setattr(under_way, "CALLS", 5)
        patch.setattr(under_way, "WINDOW", 150_000)
        run_virtual(_quiet_moments(random.Random(seed), steps))


async def _quiet_moments(rng: random.Random, steps: int) -> None:
    network, loop = Narrow(rng, most=30_000), asyncio.get_running_loop()
    there = There(network)
    way = CallWay(loop, there.dial)
    asked: list[Asked] = []
    encoded: set[Asked] = set()
    outcomes: list[asyncio.Future[Outcome]] = []

    def ask() -> None:
        kind = rng.choice([Says.CALL, Says.MESSAGE, Says.MESSAGE])
        waiter = loop.create_future()
        one = Asked(kind, waiter)
        if kind is Says.MESSAGE and rng.random() < 0.3:
            way.begin(one)
        else:
            put(one)
        asked.append(one)
        outcomes.append(waiter)

    def put(one: Asked) -> None:
        number = asked.index(one) if one in asked else len(asked)
        encoded.add(one)
        payload = number.to_bytes(4, "big") + bytes(rng.choice([0, 100, 3_000, 60_000, 140_000]))
        one.asks(b"name", payload, loop.time() + rng.choice([0.01, 1.0, 50.0]))
        way.ask(one)

    def drawn(among: list[Asked]) -> list[Asked]:
        return [rng.choice(among)] if among else []

    def leave() -> None:
        for one in drawn(asked):
            one.waiter.cancel()
            way.abandon(one)

    def encode() -> None:
        for one in drawn([one for one in asked if not (one in encoded or one.waiter.done())]):
            put(one)

    steps_: list[Callable[[], Any]] = [
        *(ask, ask, ask, leave, encode, encode, there.answer, there.answer, there.answer),
        *(lambda: network.block(1, rng.choice([0.01, 2.0])), lambda: network.cut(0, 1), there.end),
        lambda: setattr(network, "refused", rng.randrange(2)),
    ]
    for _ in range(steps):
        rng.choice(steps_)()
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.0, 0.001, 0.1, 3.0]))
        for _ in range(6):
            await asyncio.sleep(0)
        first = next(iter(way.waiting), None)
        caller = way.caller
        if isinstance(first, Asked) and caller is not None and not caller.over:
            assert not caller.fits(first.nbytes), "it fits, and waits"
    network.refused = 0
    for one in asked:
        if one not in encoded:
            one.waiter.cancel()
            way.abandon(one)
    while any(not one.done() for one in outcomes):
        there.answer()
        await asyncio.sleep(0.01)
    assert not way.waiting
    if way.caller is not None and not way.caller.over:
        while way.caller.asking.calls:
            there.answer()
            await asyncio.sleep(0.01)
    assert there.messages == sorted(set(there.messages))
    way.lose("it is over")
    there.end()


def test_infinity_is_no_timer() -> None:
    """A stream waits for its place without a deadline of its own: its consumer has one for each part."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        network = Narrow()
        there = There(network)
        way = CallWay(loop, there.dial)
        one = Asked(Says.STREAM, None)
        one.asks(b"name", b"", math.inf)
        way.ask(one)
        assert one.timer is None
        way.abandon(one)
        assert not way.waiting
        way.close()
        await asyncio.sleep(1)

    run_virtual(main())
