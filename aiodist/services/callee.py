"""What another process asks of this one, on the connection that it has dialed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from aiodist.errors import AiodistError, WireError
from aiodist.services.codec import LARGE, decoded, encode, encoded
from aiodist.services.connection import Connection
from aiodist.services.handlers import Handler, Handlers
from aiodist.services.mailbox import Letter, Mailbox
from aiodist.services.outcomes import LEAVES, raised
from aiodist.services.serving import Served, Serving
from aiodist.transport.line import Line
from aiodist.wire import calls, objects
from aiodist.wire.calls import ASKS, Frame, Request, Says

_log = logging.getLogger("aiodist.services")


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
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._connection = Connection(loop, line, self._take, self._lost, _nothing)
        self._connection.taken = self._look_again

    async def aclose(self, patience: float) -> None:
        """Stop what runs, say so to the caller, and say goodbye; within so many seconds."""
        self._closing = True
        self._stop_all(LEAVES)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)
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
            self._asked(Says(kind), number, body)
        elif kind == Says.CANCEL:
            served = self._serving.cancel(number)
            if served is not None and served.work is not None:
                served.work.cancel()
        elif kind == Says.GRANT:
            served = self._serving.grant(number, calls.read_grant(body))
            if served is not None and served.room is not None and not served.room.done():
                served.room.set_result(None)
        else:
            raise WireError(f"a frame of kind {kind} from the side that dialed")

    def _asked(self, kind: Says, number: int, body: bytes | bytearray) -> None:
        request = calls.read_request(body)
        deadline = math.inf if request.left == math.inf else self._loop.time() + request.left
        served = self._serving.begin(number, kind, len(request.payload), deadline)
        if self._closing:
            self._answer(served, Says.REFUSED, LEAVES.encode())
            return
        if kind is Says.MESSAGE:
            self._message(served, request)
        else:
            handler = self._handlers.by_name.get(request.name)
            if handler is None or not handler.quick or kind is not Says.CALL or len(request.payload) >= LARGE:
                served.work = task = self._loop.create_task(self._run(served, request, handler))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif not self._run_now(served, request, handler):
                return
        if self._timer is None or self._serving.due < self._timer.when():
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
        """Run a plain function, as quick as calling it; whether its call goes on."""
        try:
            result = handler.function(*self._arguments(handler, objects.decode(request.payload)))
            if hasattr(result, "__await__"):  # a plain function that returns a coroutine, say
                served.begun = True
                served.work = task = self._loop.create_task(self._finish(served, result))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return True
            answer = encode(result)
        except _Refused as why:
            self._answer(served, Says.REFUSED, str(why).encode())
        except Exception as error:
            self._raised(served, request.name, error)
        else:
            self._answer(served, Says.RESULT, answer)
        return False

    async def _finish(self, served: Served, result: Any) -> None:
        try:
            self._answer(served, Says.RESULT, await encoded(await result))
        except asyncio.CancelledError as error:
            self._cancelled(served, error)
        except Exception as error:
            self._raised(served, "", error)

    async def _run(self, served: Served, request: Request, handler: Handler | None) -> None:
        try:
            if handler is None:
                handler = await self._handlers.wait_for(request.name)
                if handler is None:
                    raise _Refused(self._unknown(request.name))
            if handler.streams is not (served.kind is Says.STREAM):
                how = "gives parts: use pg.stream" if handler.streams else "gives one result: use pg.call"
                raise _Refused(f"{request.name} {how}")
            async with handler.slots:
                args = self._arguments(handler, await decoded(request.payload))
                served.begun = True
                if handler.streams:
                    await self._send_parts(served, handler.function(*args))
                    answer = b""
                else:
                    result = handler.function(*args)
                    answer = await encoded(await result if hasattr(result, "__await__") else result)
                if self._connection.full:
                    await self._connection.until_room()
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
                self._connection.send(calls.head(Says.PART, served.number, len(body)), body)
                if self._connection.full:
                    await self._connection.until_room()
        finally:
            await parts.aclose()

    def _unknown(self, name: str) -> str:
        known = ", ".join(sorted(self._handlers.by_name)[:10])
        return f"it has no handler {name!r} ({f'it has {known}' if known else 'it has none'})"

    # What is answered.

    def _answer(self, served: Served, kind: Says, body: bytes) -> None:
        if self._serving.ended(served):
            before = calls.head(kind, served.number, len(body))
            self._connection.send(before, body, more=len(self._serving) > 0)

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

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._serving.due < math.inf and not self._connection.over:
            self._timer = self._loop.call_at(self._serving.due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for served in self._serving.expired(self._loop.time()):
            if served.work is not None:
                served.work.cancel()
        self._set_timer()

    def _stop_all(self, why: str) -> None:
        for served in self._serving:
            served.stopped = served.stopped or why
            if served.work is not None:
                served.work.cancel()

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
        return set(self._tasks)


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
