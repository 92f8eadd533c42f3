"""A result in parts, as its caller sees it."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import deque
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from aiodist.errors import CallError, CallTimeout, UsageError
from aiodist.services.asking import Asked
from aiodist.services.caller import Caller
from aiodist.services.codec import decoded
from aiodist.services.outcomes import Outcome, error_of
from aiodist.services.records import Build, Misfit
from aiodist.wire.calls import Says

T = TypeVar("T")


class Opens(Protocol):
    """Finds the way to the process that is called, as far as a stream needs it."""

    async def __call__(self, nbytes: int, deadline: float) -> Caller:
        """A connection on which so many bytes may be asked now."""


class Stream(Generic[T]):
    """The parts that a handler of another rank yields, in order: `async for part in pg.stream(…)`.

    The call is made when the first part is asked for. Leaving the loop, `aclose` and dropping the stream stop
    the handler. About a MiB of parts comes before it is taken; then the handler waits.

    Raises, from the iteration:
        CallNotRun, CallUnknown, RemoteError: as `pg.call`.
        CallTooLate, CallTimeout: the next part did not come in time.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        opens: Opens,
        rank: int,
        name: str,
        payload: bytes,
        timeout: float,
        build: Build | None,
    ) -> None:
        self._loop = loop
        self._opens = opens
        self._rank = rank
        self._name = name
        self._payload = payload
        self._timeout = timeout
        self._build = build
        self._caller: Caller | None = None
        self._asked: Asked | None = None
        self._parts: deque[bytes | bytearray] = deque()
        self._outcome: Outcome | None = None
        self._over = False
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
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def __del__(self) -> None:
        if self._asked is not None and not self._over and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._caller.abandon, self._asked)  # type: ignore[union-attr]

    async def _next(self) -> Any:
        deadline = self._loop.time() + self._timeout
        try:
            if self._asked is None and not self._over:
                await self._begin(deadline)
            if not self._parts and self._outcome is None and not self._over:
                await self._until_news(deadline)
            if self._parts and not self._over:
                body = self._parts.popleft()
                assert self._caller is not None
                assert self._asked is not None
                self._caller.took(self._asked, len(body))
                return self._built(await decoded(body))
        except asyncio.CancelledError:
            self._leave()  # who iterates is gone, and asks for no other part
            raise
        over, self._over = self._over, True
        if over or self._outcome is None or self._outcome[0] == Says.RESULT:
            raise StopAsyncIteration
        raise error_of(self._outcome, self._rank, self._name, self._timeout)

    async def _begin(self, deadline: float) -> None:
        caller = await self._opens(len(self._payload), deadline)
        self._caller = caller
        waiter = _Waiter(self)
        self._asked = caller.ask(Says.STREAM, self._name.encode(), self._payload, math.inf, math.inf, waiter)
        self._payload = b""

    async def _until_news(self, deadline: float) -> None:
        self._awaited = self._loop.create_future()
        timer = self._loop.call_at(deadline, self._wake)
        try:
            await self._awaited
        finally:
            self._awaited = None
            timer.cancel()
        if not self._parts and self._outcome is None and not self._over:
            self._leave()
            raise CallTimeout(self._rank, self._name, f"no part within {self._timeout:g} s")

    def _built(self, part: Any) -> Any:
        if self._build is None:
            return part
        try:
            return self._build(part)
        except Misfit as error:
            self._leave()
            raise CallError(self._rank, self._name, f"a part of another shape: {error}") from None

    def _leave(self) -> None:
        if not self._over:
            self._over = True
            self._parts.clear()
            if self._asked is not None and self._caller is not None:
                self._caller.abandon(self._asked)
            self._wake()

    def _wake(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    # Called by `_Waiter`.

    def take_part(self, body: bytes | bytearray) -> None:
        """Keep a part that has come."""
        if not self._over:
            self._parts.append(body)
            self._wake()

    def take_end(self, outcome: Outcome) -> None:
        """Note how it ended."""
        self._outcome = outcome
        self._wake()


class _Waiter:
    """The end at which a stream's parts arrive: it does not keep a stream that nobody iterates."""

    def __init__(self, stream: Stream[Any]) -> None:
        self._stream = weakref.ref(stream)

    def part(self, body: bytes | bytearray) -> None:
        """See `caller.Waiter`."""
        stream = self._stream()
        if stream is not None:
            stream.take_part(body)

    def ended(self, outcome: Outcome) -> None:
        """See `caller.Waiter`."""
        stream = self._stream()
        if stream is not None:
            stream.take_end(outcome)
