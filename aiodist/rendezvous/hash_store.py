"""A store inside one event loop: for tests, for a world of one, and for clusters in one process."""

from __future__ import annotations

import asyncio
import itertools
import os
from functools import partial
from typing import Any

from aiodist.base.errors import UsageError
from aiodist.base.timeouts import Timeout
from aiodist.net.alarm import Alarm
from aiodist.net.tasks import settle
from aiodist.rendezvous.events import Connected, Event, Failure, Push, StoreReply, StoreRequest, Tick, Wake
from aiodist.rendezvous.failures import closed_error, error_of
from aiodist.rendezvous.machine import StoreMachine
from aiodist.rendezvous.shapes import check_key
from aiodist.rendezvous.store import Store
from aiodist.rendezvous.watch import Watch

_CLIENT = b"here"


class HashStore(Store):
    """A `StoreMachine` called directly. All ranks of its loop share one object. The clock is the loop's."""

    def __init__(self, timeout: Timeout = None) -> None:
        super().__init__(timeout)
        self.instance = os.urandom(16)
        self._machine = StoreMachine()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._watches: dict[int, Watch] = {}
        self._settled: list[int] = []
        self._alarm: Alarm | None = None
        self._closed = False

    async def _call(self, method: str, args: list[Any], timeout: float | None = None) -> Any:
        loop = self._check_use()
        id = next(self._ids)
        answer: asyncio.Future[Any] = loop.create_future()
        self._pending[id] = answer
        self._request(id, method, args if timeout is None else [*args, timeout])
        try:
            if answer.done():
                await asyncio.sleep(0)  # a loop that asks again and again must starve nobody
            return await answer
        except asyncio.CancelledError:
            if self._pending.pop(id, None) is not None:
                self._request(next(self._ids), "cancel", [id])
            elif not answer.cancelled():
                answer.exception()  # the answer came too late for its reader; asyncio need not complain
            raise

    def watch(self, prefix: str = "") -> Watch:
        self._check_use()
        id = next(self._ids)

        def on_close() -> None:
            if self._watches.pop(id, None) is not None:
                self._request(next(self._ids), "cancel", [id])

        watch = self._watches[id] = Watch(on_close)
        self._request(id, "watch", [check_key(prefix)])
        return watch

    async def aclose(self) -> None:
        self._closed = True
        if self._alarm is not None:
            self._alarm.stop()
        pending, self._pending = self._pending, {}
        watches, self._watches = self._watches, {}
        for answer in pending.values():
            settle(answer, None, closed_error())
        for watch in watches.values():
            watch.end(closed_error())

    def _check_use(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise closed_error()
        if self._loop is None:
            self._loop, self._alarm = loop, Alarm(loop, partial(self._feed, Tick()))
            self._feed(Connected(_CLIENT))
        elif self._loop is not loop:
            raise UsageError(
                "this HashStore belongs to another event loop", hint="Use a TcpStore across loops"
            )
        return loop

    def _request(self, id: int, method: str, args: list[Any]) -> None:
        settled, self._settled = self._settled, []
        self._feed(StoreRequest(_CLIENT, id, method, args, settled))

    def _feed(self, event: Event) -> None:
        assert self._loop is not None
        assert self._alarm is not None
        for effect in self._machine.handle(event, self._loop.time()):
            match effect:
                case StoreReply(_, id, value):
                    # Lists are shared between the ranks that get them; each gets its own.
                    self._settle(id, list(value) if isinstance(value, list) else value, None)
                case Failure(_, id, kind, message, hint, missing):
                    error = error_of(kind, message, hint, missing)
                    if (refused := self._watches.pop(id, None)) is not None:
                        refused.end(error)
                    self._settle(id, None, error)
                case Push(_, id, news):
                    if watch := self._watches.get(id):
                        watch.feed(news)
                case Wake(at):
                    self._alarm.set(at)

    def _settle(self, id: int, value: Any, error: Exception | None) -> None:
        self._settled.append(id)
        answer = self._pending.pop(id, None)
        if answer is not None:
            settle(answer, value, error)
