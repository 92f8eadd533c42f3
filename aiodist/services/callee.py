"""What another process asks of this one, on the connection that it has dialed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiodist.errors import AiodistError, WireError
from aiodist.services.codec import LARGE, decoded, encode, encoded
from aiodist.services.connection import Connection
from aiodist.services.handlers import Handler, Handlers
from aiodist.services.mailbox import Letter, Mailbox
from aiodist.services.outbox import PIECE
from aiodist.services.outcomes import LEAVES, raised
from aiodist.services.serving import CANCELLED, Served, Serving
from aiodist.transport.line import Line
from aiodist.wire import calls, objects
from aiodist.wire.calls import ASKS, Frame, Request, Says

_log = logging.getLogger("aiodist.services")

_CALL = Says.CALL


class _Refused(Exception):
    """The reason why a call is not begun."""


class Callee:
    """The calls of another process at this one.

    Args:
        loop: the event loop.
        line: that the other process dialed; owned.
        uid: of that process.
        handlers: what it may call.
        mailbox: where its messages go.
        gone: called when the connection has ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        line: Line,
        uid: bytes,
        handlers: Handlers,
        mailbox: Mailbox,
        gone: Callable[[Callee], object],
    ) -> None:
        self._loop = loop
        self._uid = uid
        self._handlers = handlers
        self._mailbox = mailbox
        self._gone = gone
        self._serving = Serving()
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._connection = Connection(loop, line, self._take, self._lost, _nothing)
        self._connection.taken = self._look_again

    async def aclose(self, patience: float) -> None:
        """Stop what runs, say so to the caller, and say goodbye; within so many seconds."""
        self._closing = True
        self._stop_all(LEAVES)
        if running := self.running():
            await asyncio.wait(running, timeout=patience)
        self._connection.close(self._serving.last)
        self._end()

    def lose(self) -> None:
        """End the connection: the process is lost."""
        if not self._connection.over:
            self._connection.kill()
            self._lost("")

    # What comes.

    def _look_again(self) -> None:
        """Look for the next call of who asks one thing after the other, once all are answered."""
        while not (len(self._serving) or self._connection.overdue()) and self._connection.poll():
            pass

    def _take(self, one: Frame) -> None:
        kind, number, body = one
        if kind in ASKS:
            self._asked(ASKS[kind], number, body)
        elif kind == Says.CANCEL:
            served = self._serving.cancel(number)
            if served is not None:
                self._cancel(served)
            elif self._serving.skip(number):
                self._connection.forget(number)
                self._connection.send(calls.text_frame(Says.REFUSED, number, CANCELLED))
        elif kind == Says.GRANT:
            served = self._serving.grant(number, calls.read_grant(body))
            if served is not None and served.room is not None and not served.room.done():
                served.room.set_result(None)
        else:
            raise WireError(f"a frame of kind {kind} from the side that dialed")

    def _asked(self, kind: Says, number: int, body: bytes | bytearray) -> None:
        request = calls.read_request(body)
        served = self._serving.begin(number, kind, len(request.payload), self._loop.time() + request.left)
        if self._closing:
            self._answer(served, Says.REFUSED, LEAVES.encode())
            return
        if kind is Says.MESSAGE:
            self._message(served, request)
        else:
            handler = self._handlers.by_name.get(request.name)
            large = handler is None or kind is not _CALL or len(request.payload) >= LARGE
            if large or handler.streams or not handler.slots.take():  # type: ignore[union-attr]
                served.work = self._loop.create_task(self._run(served, request, handler))
            else:
                served.slot = handler.slots  # type: ignore[union-attr]
                if not self._run_now(served, request, handler):  # type: ignore[arg-type]
                    return
        if self._serving.due < self._timer_at:
            self._set_timer()

    def _message(self, served: Served, request: Request) -> None:
        letter = Letter(self._uid, request.payload, partial(self._answer, served, Says.RESULT, b""))
        served.work = _Waiting(self, served, letter)
        self._mailbox.offer(letter)

    def withdraw(self, served: Served, letter: Letter) -> None:
        """Take back a message that waits for room."""
        if self._mailbox.withdraw(letter):
            self._stopped(served)

    # What runs.

    def _run_now(self, served: Served, request: Request, handler: Handler) -> bool:
        """Run a plain function, as quick as calling it, or begin another; whether its call goes on."""
        try:
            args = self._arguments(handler, objects.decode(request.payload))
            if not handler.quick:
                served.work = self._loop.create_task(self._go(served, handler, args))
                return True
            result = handler.function(*args)
            if hasattr(result, "__await__"):  # a plain function that returns a coroutine, say
                served.begun = True
                served.work = self._loop.create_task(self._finish(served, handler.name, result))
                return True
            answer = encode(result)
        except _Refused as why:
            self._answer(served, Says.REFUSED, str(why).encode())
        except Exception as error:
            self._raised(served, request.name, error)
        else:
            self._answer(served, Says.RESULT, answer)
        return False

    async def _go(self, served: Served, handler: Handler, args: list[Any]) -> None:
        """Run an async function; its result is answered."""
        served.started = True
        if served.stopped:
            self._stopped(served)
            return
        served.begun = True
        await self._finish(served, handler.name, handler.function(*args))

    async def _finish(self, served: Served, name: str, running: Awaitable[Any]) -> None:
        served.started = True
        try:
            result = await running
            answer = objects.encode_small(result)
            if answer is None:
                answer = await encoded(result)
            if self._connection.full or (len(answer) > PIECE and self._connection.crowded):
                await self._connection.until_room(large=len(answer) > PIECE)
            self._answer(served, Says.RESULT, answer)
            self._look_again()
        except asyncio.CancelledError as error:
            self._cancelled(served, error)
        except Exception as error:
            self._raised(served, name, error)

    async def _run(self, served: Served, request: Request, handler: Handler | None) -> None:
        """Run a call that has to wait first, a large one or a stream."""
        served.started = True
        if served.stopped:
            self._stopped(served)
            return
        try:
            if handler is None:
                handler = await self._handlers.wait_for(request.name)
                if handler is None:
                    raise _Refused(self._unknown(request.name))
            if handler.streams is not (served.kind is Says.STREAM):
                how = "gives parts: use pg.stream" if handler.streams else "gives one result: use pg.call"
                raise _Refused(f"{request.name} {how}")
            await handler.slots.wait()
            served.slot = handler.slots
            args = self._arguments(handler, await decoded(request.payload))
            served.begun = True
            if handler.streams:
                await self._send_parts(served, handler.function(*args))
                answer = b""
            else:
                result = handler.function(*args)
                answer = await encoded(await result if hasattr(result, "__await__") else result)
            if self._connection.full or (len(answer) > PIECE and self._connection.crowded):
                await self._connection.until_room(large=len(answer) > PIECE)
            self._answer(served, Says.RESULT, answer)
            self._look_again()
        except _Refused as why:
            self._answer(served, Says.REFUSED, str(why).encode())
        except asyncio.CancelledError as error:
            self._cancelled(served, error)
        except Exception as error:
            self._raised(served, request.name, error)

    def _arguments(self, handler: Handler, args: Any) -> list[Any]:
        if type(args) is not list:
            raise _Refused("its arguments cannot be read")
        if why := handler.misfit(args):
            raise _Refused(why)
        return args

    async def _send_parts(self, served: Served, parts: Any) -> None:
        try:
            async for part in parts:
                body = await encoded(part)
                while served.credit <= 0:
                    served.room = self._loop.create_future()
                    await served.room
                served.spend(len(body))
                self._send(served, Says.PART, body)
                if self._connection.full or self._connection.crowded:
                    await self._connection.until_room(large=len(body) > PIECE)
        finally:
            await parts.aclose()

    def _unknown(self, name: str) -> str:
        return self._handlers.unknown(name)

    # What is answered.

    def _answer(self, served: Served, kind: Says, body: bytes) -> None:
        if served.slot is not None:
            served.slot.give()
            served.slot = None
        if self._serving.ended(served):
            self._send(served, kind, body, more=len(self._serving) > 0)

    def _send(self, served: Served, kind: Says, body: bytes, *, more: bool = False) -> None:
        connection, number = self._connection, served.number
        if connection.in_turn(number, len(body)):
            connection.send_in_turn(number, kind, number, body)
        else:
            connection.send(calls.head(kind, number, len(body)), body, more=more)

    def _raised(self, served: Served, name: str, error: BaseException) -> None:
        level = logging.DEBUG if isinstance(error, AiodistError) else logging.INFO
        _log.log(level, "handler %s raised, and its caller is told", name, exc_info=error)
        self._answer(served, Says.RAISED, raised(error))

    def _cancelled(self, served: Served, error: asyncio.CancelledError) -> None:
        if served.stopped or self._connection.over:
            self._stopped(served)
        else:
            self._answer(served, Says.RAISED, raised(error))  # by the handler itself

    def _stopped(self, served: Served) -> None:
        kind = Says.DROPPED if served.begun else Says.REFUSED
        self._answer(served, kind, served.stopped.encode())

    # The end.

    def _cancel(self, served: Served) -> None:
        """Stop a call; its task answers. A task that has not begun takes its first step before, and sees."""
        work = served.work
        if served.started or type(work) is _Waiting:
            work.cancel()
        elif work is not None:
            self._loop.call_soon(work.cancel)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf
        if self._serving.due < math.inf and not self._connection.over:
            self._timer_at = self._serving.due
            self._timer = self._loop.call_at(self._timer_at, self._expire)

    def _expire(self) -> None:
        for served in self._serving.expired(self._loop.time()):
            self._cancel(served)
        self._set_timer()

    def _stop_all(self, why: str) -> None:
        for served in self._serving:
            served.stopped = served.stopped or why
            self._cancel(served)

    def _lost(self, _why: str) -> None:
        self._stop_all("its caller is gone")
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._gone(self)

    def running(self) -> set[asyncio.Task[None]]:
        """The tasks of handlers that have not ended."""
        return {served.work for served in self._serving if isinstance(served.work, asyncio.Task)}


class _Waiting:
    """The work of a message: to wait for room in the mailbox."""

    def __init__(self, callee: Callee, served: Served, letter: Letter) -> None:
        self._callee = callee
        self._served = served
        self._letter = letter

    def cancel(self) -> None:
        """Take the message back, if it still waits."""
        self._callee.withdraw(self._served, self._letter)


def _nothing() -> None:
    pass
