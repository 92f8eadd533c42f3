"""A result in parts, as its caller sees it."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from aiodist.base.errors import AiodistError, CallError, CallTimeout, UsageError
from aiodist.group.services.asking import Asked
from aiodist.group.services.codec import Received
from aiodist.group.services.outcomes import LATE, Outcome, error_of
from aiodist.group.services.records import Build, Misfit
from aiodist.group.services.way import CallWay
from aiodist.net.wire.calls import Says

T = TypeVar("T")

_LEFT: Outcome = (-100, None)  # of a stream whose parts nobody wants any more


class Stream(Generic[T]):
    """The parts that a handler of another rank yields, in order: `async for part in pg.stream(…)`.

    The call is made when the first part is asked for. `aclose`, leaving its block and dropping the stream
    stop the handler. About a MiB of parts comes before it is taken; then the handler waits. Where taking a
    part is cancelled, the stream is as before, and the next `anext` gives that part.

    Raises, from the iteration:
        CallNotRun, CallUnknown, RemoteError: as `pg.call`.
        CallTooLate, CallTimeout: the next part did not come in time.
        UsageError: it was left before its end, or two tasks take parts at once.
    After an error, each further `anext` raises one, too.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        opens: Callable[[], CallWay],
        hears: Callable[[Outcome, float], Awaitable[Outcome]],
        rank: int,
        name: str,
        payload: bytes,
        timeout: float,
        build: Build | None,
    ) -> None:
        self._loop = loop
        self._opens = opens
        self._hears = hears
        self._rank = rank
        self._name = name
        self._payload = payload
        self._timeout = timeout
        self._build = build
        self._way: CallWay | None = None
        self._asked: Asked | None = None
        self._parts: deque[Received] = deque()
        self._end: Outcome | None = None  # what comes behind the parts
        self._heard = False  # all that is known of the end
        self._awaited: asyncio.Future[None] | None = None
        self._taking = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._taking:
            raise UsageError("two tasks take parts of one stream", hint="Take them in one, or call twice")
        self._taking = True
        try:
            part: T = await self._next()
            return part
        finally:
            self._taking = False

    async def aclose(self) -> None:
        """Take no more parts, and have the handler stopped. May be repeated."""
        self._leave(_LEFT)

    def give_back(self, part: T) -> None:
        """Have a part taken again, first of all: its taker could not have it."""
        if self._end is not _LEFT:
            self._parts.appendleft(Received(b"").holds(part))
            self._wake()

    def fail_again(self, _error: BaseException) -> None:
        """Do nothing: behind an error each further `anext` raises one."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(_LEFT)

    def __del__(self) -> None:
        if self._asked is not None and self._end is None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._way.abandon, self._asked)  # type: ignore[union-attr]

    async def _next(self) -> Any:
        deadline = self._loop.time() + self._timeout
        if self._asked is None and self._end is None:
            self._begin()
        if not self._parts and self._end is None:
            await self._until_news(deadline)
        parts = self._parts
        if parts:
            received = parts[0]
            try:
                part = await received.value()
            except AiodistError as error:
                self._leave(_LEFT)
                words = f"a part cannot be read: {error.message}"
                raise CallError(self._rank, self._name, words, hint=error.hint) from error
            if parts:  # it is taken only now: nothing is lost where that was cancelled
                part = self._built(part) if received.payload else part
                parts.remove(received)  # the first, but for one that was given back meanwhile
                assert self._way is not None
                assert self._asked is not None
                self._way.took(self._asked, len(received.payload))
                return part
        ending = self._end
        if ending is not None and not self._heard:
            heard = await self._hears(ending, deadline)
            self._heard = True
            if self._end is ending:  # it was not left meanwhile
                self._end = heard
        raise self._ending()

    def _begin(self) -> None:
        self._way = self._opens()
        self._asked = asked = Asked(Says.STREAM, _Waiter(self))
        asked.asks(self._name.encode(), self._payload, math.inf)  # each part has a deadline, here
        self._payload = b""
        self._way.ask(asked)

    async def _until_news(self, deadline: float) -> None:
        """Wait for the next part, or the end."""
        self._awaited = self._loop.create_future()
        timer = self._loop.call_at(deadline, self._wake)
        try:
            await self._awaited
        finally:
            self._awaited = None
            timer.cancel()
        if not self._parts and self._end is None:
            assert self._way is not None
            assert self._asked is not None
            self._leave((LATE, None) if self._asked.number else self._way.why_late(self._asked))

    def _ending(self) -> Exception:
        """What comes behind the parts."""
        assert self._end is not None
        kind = self._end[0]
        if kind == Says.RESULT:
            return StopAsyncIteration()
        if kind == _LEFT[0]:
            return UsageError("the stream was left before its end", hint="Take all its parts, or call again")
        if kind == LATE:
            return CallTimeout(self._rank, self._name, f"no part within {self._timeout:g} s")
        return error_of(self._end, self._rank, self._name, self._timeout)

    def _built(self, part: Any) -> Any:
        """Make of a part, not taken yet, what the annotation says. Where that raises, the stream is left."""
        if self._build is None:
            return part
        try:
            return self._build(part)
        except BaseException as error:
            self._leave(_LEFT)
            if isinstance(error, Misfit):
                raise CallError(
                    self._rank, self._name, f"a part of another shape: {error}"
                ) from error.__cause__
            raise

    def _leave(self, end: Outcome) -> None:
        """Stop the handler, unless the stream has ended and all its parts are taken."""
        if self._end is None or self._parts:
            self._end = end
            self._parts.clear()
            if self._asked is not None and self._way is not None:
                self._way.abandon(self._asked)
            self._wake()

    def _wake(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    # Called by `_Waiter`.

    def take_part(self, body: bytes | bytearray) -> None:
        """Keep a part that has come."""
        if self._end is None:
            self._parts.append(Received(body))
            self._wake()

    def take_end(self, outcome: Outcome) -> None:
        """Note how it ended."""
        if self._end is None:
            self._end = outcome
            self._wake()


class _Waiter:
    """The end at which a stream's parts arrive: it does not keep a stream that nobody iterates."""

    def __init__(self, stream: Stream[Any]) -> None:
        self._stream = weakref.ref(stream)

    def part(self, body: bytes | bytearray) -> None:
        """Take a part that has come for the stream; see `caller.CallWaiter`."""
        stream = self._stream()
        if stream is not None:
            stream.take_part(body)

    def ended(self, outcome: Outcome) -> None:
        """End the stream, with an error or without; see `caller.CallWaiter`."""
        stream = self._stream()
        if stream is not None:
            stream.take_end(outcome)
