"""Coroutine methods that a training loop calls again and again, and might forget to await."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from aiodist.base.errors import UsageError

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


class Once(Generic[T]):
    """Steps that one task does for all that wait for them. Cancelling a wait ends only that wait: the next
    call waits for the same task, and is told how it ended."""

    def __init__(self) -> None:
        self._task: asyncio.Future[T] | None = None

    @property
    def pending(self) -> bool:
        """Whether they have begun, and nobody was told how they ended."""
        return self._task is not None

    async def of(self, steps: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the steps, which this begins unless they have begun."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(steps())
            self._task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        task = self._task
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by the end of its loop
                self._task = None
            raise
        except BaseException:
            self._done(task)
            raise
        self._done(task)
        return result

    async def ended(self) -> None:
        """Wait until the steps that have begun are over, well or not."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def give_back(self, result: T) -> None:
        """Have the next call return this: its caller could not take it."""
        self._task = asyncio.get_running_loop().create_future()
        self._task.set_result(result)

    def fail_again(self, error: BaseException) -> None:
        """Have the next call raise this: its caller could not take it. A UsageError has ended no step."""
        if not isinstance(error, UsageError):
            self._task = asyncio.get_running_loop().create_future()
            self._task.set_exception(error)
            self._task.exception()  # nobody need ask for it

    def _done(self, task: asyncio.Future[T]) -> None:
        if self._task is task:
            self._task = None


def each_awaited(method: Method[S, P, T]) -> Method[S, P, T]:
    """A coroutine method that refuses a call where the one before was never awaited.

    Without that a loop that counts steps would go on for ever: nothing of a coroutine runs before its await.
    """
    name = method.__name__
    key = f"_last_{name}"

    @functools.wraps(method)
    def begin(self: S, /, *args: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
        last = self.__dict__.get(key)
        if last is not None and inspect.getcoroutinestate(last) == inspect.CORO_CREATED:
            last.close()
            raise UsageError(
                f"the {name}() before this one was never awaited", hint=f"Write `await ….{name}()`"
            )
        made = self.__dict__[key] = method(self, *args, **named)
        return made

    return begin
