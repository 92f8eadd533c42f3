"""Coroutine methods that a training loop calls again and again, and might forget to await."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from aiodist.errors import UsageError

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


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
