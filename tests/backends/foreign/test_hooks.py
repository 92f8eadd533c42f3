"""What an engine hears besides its operations: of each in the user's call, and from senders of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

import aiodist as dist
from aiodist.backends.base import Operation
from aiodist.backends.foreign import Task
from aiodist.backends.foreign.engine import Done
from aiodist.group import ProcessGroup
from aiodist.testing import run_cluster
from tests.backends.foreign.postbox import BesidePostbox


class Greeting(BesidePostbox):
    """One that tells receivers who it is, and notes what it hears."""

    name = "greeting"
    greets = 10
    heard: ClassVar[list[tuple[int, str]]] = []
    known: ClassVar[dict[tuple[int, int], bytes]] = {}

    def issued(self, operation: Operation) -> None:
        self.heard.append((self.setup.rank, operation.call.kind.name))

    def greeting(self, peer: int) -> bytes:
        return b"%d says %d" % (self.setup.rank, peer) + b"!!"

    def greeted(self, peer: int, greeting: bytes) -> None:
        self.known[self.setup.rank, peer] = greeting

    def recv(self, task: Task, peer: int, number: int, done: Done) -> None:
        assert (self.setup.rank, peer) in self.known  # before the receive
        super().recv(task, peer, number, done)


dist.register_backend("greeting", Greeting)


class Dividing(BesidePostbox):
    """One that notes the place of a division among its operations."""

    name = "dividing-hooks"
    order: ClassVar[list[tuple[int, Any]]] = []

    def splitting(self, context: int, members: Sequence[int]) -> None:
        self.order.append((self.setup.rank, ("splitting", context, tuple(members))))

    def start(self, task: Task, done: Done) -> None:
        self.order.append((self.setup.rank, task.operation.call.seq))
        super().start(task, done)

    async def open(self) -> None:
        if isinstance(self.setup.parent, Dividing):
            self.order.append((self.setup.ranks[self.setup.rank], ("opens", self.setup.context)))
        await super().open()


dist.register_backend("dividing-hooks", Dividing)


async def test_engine_hears_of_an_operation_inside_the_call() -> None:
    Greeting.heard.clear()

    async def main(pg: ProcessGroup) -> None:
        work = pg.all_reduce(np.arange(3.0), async_op=True)
        assert Greeting.heard.count((pg.rank, "all_reduce")) == 1
        async with pg.coalesce():
            held = pg.all_reduce(np.arange(3.0), async_op=True)
            assert Greeting.heard.count((pg.rank, "all_reduce")) == 2  # though it begins later
        assert Greeting.heard.count((pg.rank, "all_reduce")) == 2
        into = np.zeros(3)
        async with pg.coalesce():
            message = pg.recv(into, 0, async_op=True) if pg.rank else pg.send(np.ones(3), 1, async_op=True)
            assert Greeting.heard[-1] == (pg.rank, "recv" if pg.rank else "send")
        await asyncio.gather(work, held, message)

    await run_cluster(2, main, backend="greeting")


async def test_greeting_comes_with_every_message_before_it_is_received() -> None:
    Greeting.known.clear()

    async def main(pg: ProcessGroup) -> None:
        right, left = (pg.rank + 1) % 3, (pg.rank - 1) % 3
        sent = pg.send(np.arange(5) + pg.rank, right, async_op=True)
        into = np.zeros(5, np.int64)
        assert await pg.recv(into, None) == left
        await sent
        assert np.array_equal(into, np.arange(5) + left)

    await run_cluster(3, main, backend="greeting")
    assert Greeting.known == {
        (rank, (rank - 1) % 3): b"%d says %d!!" % ((rank - 1) % 3, rank) for rank in range(3)
    }


async def test_division_has_its_place_among_the_operations() -> None:
    """Behind one that was held back, and before whatever is issued later."""
    Dividing.order.clear()

    async def main(pg: ProcessGroup) -> None:
        inside, issued = asyncio.Event(), asyncio.Event()

        async def batch() -> None:
            async with pg.coalesce():
                pg.all_reduce(np.ones(3))
                inside.set()
                await issued.wait()

        held = asyncio.create_task(batch())
        await inside.wait()
        second = pg.all_reduce(np.ones(3), async_op=True)
        made = pg.new_group([2, 0])
        third = pg.all_reduce(np.ones(3), async_op=True)
        issued.set()
        await asyncio.gather(held, second, third)
        group = await made
        assert (group is None) == (pg.rank == 1)
        if group is not None:
            await group.aclose()

    await run_cluster(3, main, backend="dividing-hooks")
    orders = [[what for other, what in Dividing.order if other == rank] for rank in range(3)]
    context = orders[0][2][1]
    for rank, order in enumerate(orders):
        opens = [] if rank == 1 else [("opens", context)]
        first = order[0]
        assert order == [first, first + 1, ("splitting", context, (0, 2)), first + 3, *opens]
