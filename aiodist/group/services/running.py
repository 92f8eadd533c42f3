"""Handlers that run: plain functions within the turn in which they are called, all others in tasks."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from aiodist.group.services.answers import Answers
from aiodist.group.services.codec import decoded, encode, encoded
from aiodist.group.services.handlers import Handler, Handlers
from aiodist.group.services.outcomes import ENDS_THE_PROCESS, raised, unreadable
from aiodist.group.services.serving import SERVED, Served, Serving
from aiodist.net.wire import objects
from aiodist.net.wire.calls import Request, Says

_CALL, _RESULT = Says.CALL, Says.RESULT


class _Refused(Exception):
    """The reason why a call is not begun."""


class HandlerRuns:
    """The handlers that run for the calls of one connection.

    Args:
        loop: the event loop.
        handlers: what may be called.
        serving: the calls, each admitted.
        answers: where they are answered.
        free: called when a task has answered.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handlers: Handlers,
        serving: Serving,
        answers: Answers,
        free: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._handlers = handlers
        self._serving = serving
        self._answers = answers
        self._free = free
        self.context = contextvars.copy_context()  # calls may come while another's handler polls

    def call(self, kind: Says, number: int, request: Request) -> None:
        """Run what a CALL or STREAM asks for: at once, or in a task."""
        left, name, payload = request
        nbytes = len(payload)
        handler = self._handlers.by_name.get(name)
        large = objects.is_slow(payload) or kind is not _CALL
        if large or handler is None or handler.streams or not handler.slots.free:
            served = self._serving.begin(number, kind, nbytes, self._loop.time() + left)
            self._start(served, self._carry_out(served, name, payload, handler))
            return
        try:
            args = objects.decode(payload)
            why = handler.misfit(args)
        except ENDS_THE_PROCESS as error:
            self._exits(name, error)
            raise
        except BaseException as error:
            self._answers.at_once(number, Says.REFUSED, unreadable(error))
            return
        if why:
            self._answers.at_once(number, Says.REFUSED, why.encode())
        elif handler.quick:
            try:
                result = self.context.copy().run(handler.function, *args)
            except BaseException as error:
                self.raised(number, name, error)
            else:
                self.returned(number, handler, nbytes, left, result)
        else:
            served = self._serve(number, handler, nbytes, left)
            self._start(served, self._finish(served, handler, args))

    # Called by the engine, too, which takes the usual calls.

    def returned(self, number: int, handler: Handler, nbytes: int, left: float, result: Any) -> None:
        """Answer with what a plain function has returned: now, or when what it has begun is done."""
        try:
            if not hasattr(result, "__await__"):
                self._answers.at_once(number, _RESULT, encode(result))
                return
        except BaseException as error:
            self.raised(number, handler.name, error)
            return
        served = self._serve(number, handler, nbytes, left)
        served.begun = True
        self._start(served, self._wait(served, handler, result))

    def raised(self, number: int, name: str, error: BaseException) -> None:
        """Answer with what a plain function has raised."""
        if isinstance(error, ENDS_THE_PROCESS):
            self._exits(name, error)
            raise error
        self._answers.at_once(number, Says.RAISED, raised(error))
        self._answers.notes.raised(name, error)

    async def answer(self, served: Served, handler: Handler, result: Any) -> None:
        """Answer with what a handler returned, when there is room."""
        try:
            answer = await encoded(result)
            if self._answers.must_wait(len(answer)):
                await self._answers.room(len(answer))
            self._answers.end(served, _RESULT, answer)
            self._free()
        except BaseException as error:
            self.failed(served, handler.name, error)

    def stopped(self, served: Served) -> None:
        """Answer a call that was stopped."""
        self._answers.stopped(served)

    def unstarted(self, served: Served) -> None:
        """Answer a call whose task the program has cancelled before its first step, which it never takes."""
        served.started = True
        if served.stopped or served.begun:
            self._answers.cancelled(served, asyncio.CancelledError())
        else:
            self._answers.end(served, Says.REFUSED, b"its task was cancelled there")

    async def awaits(self, running: Awaitable[Any]) -> Any:
        """Wait for what an async function has given that is no coroutine."""
        return await running

    def failed(self, served: Served, name: str, error: BaseException) -> None:
        """Answer a call whose task ends with an exception, whichever that is."""
        if isinstance(error, ENDS_THE_PROCESS):
            self._exits(name, error)
            raise error
        if not self._loop.is_running():
            raise error  # the loop has ended, and its tasks are taken apart
        if isinstance(error, asyncio.CancelledError):
            self._answers.cancelled(served, error)
        elif not served.begun:
            self._answers.end(served, Says.REFUSED, unreadable(error))
        else:
            self._answers.raised(served, name, error)

    # Inside.

    def _serve(self, number: int, handler: Handler, nbytes: int, left: float) -> Served:
        """Enter a call that runs; it has one of the handler's places."""
        served = self._serving.begin(number, _CALL, nbytes, self._loop.time() + left)
        served.slot = handler.slots
        served.slot.free -= 1
        return served

    def _start(self, served: Served, work: Coroutine[Any, Any, None]) -> None:
        context, loop = self.context.copy(), self._loop
        context.run(SERVED.set, served)
        if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
            task = asyncio.Task(work, loop=loop, context=context, eager_start=True)
        else:
            task = loop.create_task(work, context=context)
        if served.number in self._serving.calls:  # it has not ended in its first step
            served.work = task
            if not served.started:
                task.add_done_callback(partial(self._task_ended, served))
            if served.stopped:
                task.cancel()

    def _task_ended(self, served: Served, _task: asyncio.Task[None]) -> None:
        """Answer for a task that has ended without its first step."""
        if not served.started:
            self.unstarted(served)

    async def _finish(self, served: Served, handler: Handler, args: list[Any]) -> None:
        """Run an async function; its result is answered."""
        served.started = True
        if served.stopped:
            self.stopped(served)
            return
        served.begun = True
        try:
            running = handler.function(*args)
        except BaseException as error:
            self.failed(served, handler.name, error)
            return
        await self._wait(served, handler, running)

    async def _wait(self, served: Served, handler: Handler, running: Awaitable[Any]) -> None:
        """Wait for what a function has begun; its result is answered."""
        served.started = True
        try:
            result = await running
        except BaseException as error:
            self.failed(served, handler.name, error)
            return
        await self.answer(served, handler, result)

    async def _carry_out(
        self, served: Served, name: str, payload: bytes | memoryview, handler: Handler | None
    ) -> None:
        """Run a call that has to wait first, a large one or a stream."""
        served.started = True
        if served.stopped:
            self._answers.stopped(served)
            return
        try:
            if handler is None:
                handler = await self._handlers.wait_for(name)
                if handler is None:
                    raise _Refused(self._handlers.unknown(name))
            if handler.streams is not (served.kind is Says.STREAM):
                how = "gives parts: use pg.stream" if handler.streams else "gives one result: use pg.call"
                raise _Refused(f"{name} {how}")
            await handler.slots.wait()
            served.slot = handler.slots
            args = await decoded(payload)
            if why := handler.misfit(args):
                raise _Refused(why)
            served.begun = True
            result = handler.function(*args)
            if handler.streams:
                await self._send_parts(served, result)
                answer = b""
            else:
                answer = await encoded(await result if hasattr(result, "__await__") else result)
            if self._answers.must_wait(len(answer)):
                await self._answers.room(len(answer))
            self._answers.end(served, _RESULT, answer)
            self._free()
        except _Refused as why:
            self._answers.end(served, Says.REFUSED, str(why).encode())
        except BaseException as error:
            self.failed(served, name, error)

    def _exits(self, name: str, error: BaseException) -> None:
        if isinstance(error, SystemExit):
            self._answers.notes.exits(name, error)

    async def _send_parts(self, served: Served, parts: Any) -> None:
        try:
            async for part in parts:
                await self._answers.part(served, await encoded(part))
        finally:
            await parts.aclose()
