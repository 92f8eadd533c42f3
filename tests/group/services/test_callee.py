"""The side that serves, against one that only writes bytes: it keeps deadlines by itself."""

from __future__ import annotations

import asyncio
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
