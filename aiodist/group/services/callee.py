"""What another process asks of this one, on the connection that it has dialed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from aiodist import _engine
from aiodist.base.errors import Tampered, WireError
from aiodist.group.services import under_way
from aiodist.group.services.answers import Answers
from aiodist.group.services.connection import Connection
from aiodist.group.services.handlers import Handlers
from aiodist.group.services.mailbox import Letter, Mailbox
from aiodist.group.services.outcomes import LEAVES
from aiodist.group.services.running import HandlerRuns
from aiodist.group.services.serving import CANCELLED, SERVED, Served, Serving
from aiodist.net.alarm import Alarm
from aiodist.net.wire import calls
from aiodist.net.wire.calls import ASKS, Says
from aiodist.transport.line import Line

_CALL, _MESSAGE, _CANCEL, _GRANT = Says.CALL, Says.MESSAGE, int(Says.CANCEL), int(Says.GRANT)


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
        self._mailbox = mailbox
        self._gone = gone
        self._serving = Serving()
        self._closing = False
        self._alarm = Alarm(loop, self._expire)
        self._connection = Connection(loop, line, self._take, self._lost, _nothing)
        self._connection.taken = self._poll_next
        self._answers = Answers(self._serving, self._connection, handlers.notes)
        self._running = HandlerRuns(loop, handlers, self._serving, self._answers, self._poll_next)
        if _engine.compiled is not None:
            self._connection.matcher = _engine.compiled.Server(
                self._connection,
                self._serving,
                handlers.by_name,
                loop,
                runs=self._running,
                make=Served,
                served=SERVED,
                call=_CALL,
                context=self._running.context,
                alarm=self._alarm,
                free=self._poll_next,
                most=under_way.CALLS,
                window=under_way.WINDOW,
            )

    async def aclose(self, patience: float) -> None:
        """Stop what runs, say so to the caller, and say goodbye; within so many seconds."""
        self._closing = True
        self._connection.matcher = None
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

    @property
    def served(self) -> int:
        """The count of calls that have come and are not answered."""
        return len(self._serving.calls)

    def running(self) -> set[asyncio.Task[None]]:
        """The tasks of handlers that have not ended."""
        return {served.work for served in self._serving if isinstance(served.work, asyncio.Task)}

    # What comes.

    def _poll_next(self) -> None:
        """Look for the next call of who asks one thing after the other, once all are answered."""
        calls, connection = self._serving.calls, self._connection
        while not (calls or connection.overdue()) and connection.poll():
            pass

    def _take(self, kind: int, number: int, body: bytes | bytearray) -> None:
        asks = ASKS.get(kind)
        if asks is not None:
            self._asked(asks, number, body)
        elif kind == _CANCEL:
            served = self._serving.cancel(number)
            if served is not None:
                self._cancel(served)
            elif self._serving.skip(number):
                self._connection.forget(number)
                self._connection.send(calls.text_frame(Says.REFUSED, number, CANCELLED))
        elif kind == _GRANT:
            served = self._serving.grant(number, calls.read_grant(body))
            if served is not None and served.room is not None and not served.room.done():
                served.room.set_result(None)
        else:
            raise WireError(f"a frame of kind {kind} from the side that dialed")

    def _asked(self, kind: Says, number: int, body: bytes | bytearray) -> None:
        request = calls.read_request(body)
        serving = self._serving
        serving.admit(number, len(request[2]))
        if self._closing:
            self._answers.at_once(number, Says.REFUSED, LEAVES.encode())
            return
        if kind is _MESSAGE:
            self._message(number, request)
        else:
            self._running.call(kind, number, request)
        if serving.due < self._alarm.at:
            self._alarm.set(serving.due)

    def _message(self, number: int, request: calls.Request) -> None:
        left, _, payload = request
        served = self._serving.begin(number, _MESSAGE, len(payload), self._loop.time() + left)
        letter = Letter(self._uid, payload, partial(self._answers.end, served, Says.RESULT, b""))
        served.work = _Waiting(self._mailbox, letter, partial(self._answers.stopped, served))
        self._mailbox.offer(letter)

    # The end.

    def _cancel(self, served: Served) -> None:
        """Stop a call; its task answers. A task that has not begun takes its first step before, and sees."""
        work = served.work
        if work is None:
            return  # in its first step, after which `HandlerRuns` looks
        if served.started or type(work) is _Waiting:
            work.cancel()
        else:
            self._loop.call_soon(work.cancel)

    def _expire(self) -> None:
        for served in self._serving.stop_late(self._loop.time()):
            self._cancel(served)
        self._alarm.set(self._serving.due)

    def _stop_all(self, why: str) -> None:
        for served in self._serving:
            served.stopped = served.stopped or why
            self._cancel(served)

    def _lost(self, _why: str | Tampered) -> None:
        self._stop_all("its caller is gone")
        self._end()

    def _end(self) -> None:
        self._alarm.stop()
        self._gone(self)


class _Waiting:
    """The work of a message: to wait for room in the mailbox."""

    def __init__(self, mailbox: Mailbox, letter: Letter, stopped: Callable[[], object]) -> None:
        self._mailbox = mailbox
        self._letter = letter
        self._stopped = stopped

    def cancel(self) -> None:
        """Take the message back, if it still waits."""
        if self._mailbox.withdraw(self._letter):
            self._stopped()


def _nothing() -> None:
    pass
