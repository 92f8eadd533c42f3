"""The side that serves, against one that only writes bytes: it keeps deadlines by itself."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiodist.group.services.callee import Callee
from aiodist.group.services.codec import encode
from aiodist.group.services.handlers import Handlers
from aiodist.group.services.mailbox import Mailbox
from aiodist.net.wire.calls import Frames, Says, request
from aiodist.testing import run_virtual
from aiodist.transport.line import MemoryLine


class Bytes:
    """A process that asks by bytes, and cancels nothing.

    Attributes:
        answers: kind, number and body of what came.
    """

    def __init__(self, handlers: Handlers) -> None:
        loop = asyncio.get_running_loop()
        self._line, theirs = MemoryLine.pair(loop, 0, 0)
        self._frames = Frames()
        self.answers: list[tuple[int, int, bytes]] = []
        self._line.received = self._received
        self._line.start()
        self.callee = Callee(loop, theirs, b"u", handlers, Mailbox(), lambda _: None)

    def ask(self, number: int, name: str, *args: Any, left: float) -> None:
        """Send a call that has so many seconds left."""
        self._line.write(request(Says.CALL, number, left, name.encode(), encode(list(args))))

    def _received(self, data: bytes) -> None:
        self.answers += [(kind, number, bytes(body)) for kind, number, body in self._frames.feed(data)]


def test_a_deadline_stops_what_a_plain_function_has_begun() -> None:
    """Also where a frozen caller cancels nothing; and so it does for calls that follow."""

    async def main() -> None:
        handlers = Handlers()
        began = asyncio.Event()
        stopped: list[tuple[str, float]] = []
        loop = asyncio.get_running_loop()

        async def waits(who: str) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append((who, loop.time()))

        def begins(who: str) -> Any:
            return waits(who)

        handlers.register(begins, "begins", None)
        handlers.register(waits, "waits", None)
        caller = Bytes(handlers)
        begin = loop.time()
        caller.ask(1, "begins", "first", left=5.0)
        await began.wait()
        caller.ask(2, "waits", "second", left=8.0)
        await asyncio.sleep(20)
        assert [(who, round(at - begin)) for who, at in stopped] == [("first", 5), ("second", 8)]
        passed = b"its deadline passed"
        assert caller.answers == [(Says.DROPPED, 1, passed), (Says.DROPPED, 2, passed)]
        assert caller.callee.served == 0
        await caller.callee.aclose(1.0)

    run_virtual(main())


def test_a_task_that_the_program_cancels_before_its_first_step_is_answered() -> None:
    """Its place is free again, and it says truly whether something of it has run."""

    async def main() -> None:
        handlers = Handlers()
        loop = asyncio.get_running_loop()
        ours = {asyncio.current_task()}

        async def later(x: Any) -> Any:
            return x

        async def queued(x: Any) -> Any:
            return x

        def begins() -> Any:
            return loop.create_future()

        def cancels() -> None:
            for task in asyncio.all_tasks() - ours:
                task.cancel()

        for function in (later, queued, begins):
            handlers.register(function, function.__name__, 2)
        handlers.register(cancels, "cancels", None)
        handlers.by_name["queued"].slots.free = 0
        caller = Bytes(handlers)
        caller.ask(1, "later", 1, left=50.0)
        caller.ask(2, "later", (2,), left=50.0)
        caller.ask(3, "begins", left=50.0)
        caller.ask(4, "queued", 4, left=50.0)
        caller.ask(5, "cancels", left=50.0)
        await asyncio.sleep(1)
        refused, raised, result = Says.REFUSED, Says.RAISED, Says.RESULT
        expected = {1: refused, 2: refused, 3: raised, 4: refused, 5: result}
        if sys.version_info >= (3, 12):  # tasks take their first step at once
            expected |= {1: result, 2: result, 4: raised}
        assert {number: kind for kind, number, _ in caller.answers} == expected
        assert {name: one.slots.free for name, one in handlers.by_name.items()} == {
            "later": 2, "queued": 0, "begins": 2, "cancels": 256
        }  # fmt: skip
        assert caller.callee.served == 0
        caller.ask(6, "later", 6, left=50.0)
        await asyncio.sleep(1)
        assert caller.answers[-1] == (Says.RESULT, 6, encode(6))
        await caller.callee.aclose(1.0)

    run_virtual(main())
