"""A group that is being made: awaited, it gives the group; entered, it is closed at the end, too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar

from aiodist.base.errors import UsageError
from aiodist.base.torch_names import argument_hint

G = TypeVar("G")
P = ParamSpec("P")


class _NotMade(UsageError, AttributeError):
    """A group was used before it was made."""


class Entering(Coroutine[Any, Any, G], AbstractAsyncContextManager[G, None]):
    """A coroutine that gives a group, and an async context manager of that group.

        pg = await dist.init_process_group()
        async with dist.init_process_group() as pg: ...

    Args:
        making: gives the group; None, or what stands for it, where this rank is no member.
        never_made: called where this ends, or is dropped, before `making` has begun. From any thread.
    """

    __slots__ = ("__weakref__", "_made", "_making", "_never_made")

    def __init__(
        self, making: Coroutine[Any, Any, G], never_made: Callable[[], object] | None = None
    ) -> None:
        self._making = making
        self._never_made = never_made
        self._made: Any = None

    def __del__(self) -> None:
        self._ends_unbegun()

    def __await__(self) -> Generator[Any, None, G]:
        return (yield from self._making.__await__())  # not that itself: who awaits this keeps this

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _NotMade(
            f"the group is not made yet, so it has no {name!r}",
            hint="Write `pg = await …`, or `async with … as pg:`",
        )

    def __enter__(self) -> NoReturn:
        raise TypeError("a group is entered by `async with`")

    def __exit__(self, *_: object) -> None:
        """Do nothing: it is not entered."""

    def send(self, value: Any) -> Any:
        """As a coroutine's."""
        return self._making.send(value)

    def throw(self, *error: Any) -> Any:
        """As a coroutine's: also of a task that is cancelled before its first step."""
        self._ends_unbegun()
        return self._making.throw(*error)

    def close(self) -> None:
        """As a coroutine's."""
        self._ends_unbegun()
        self._making.close()

    def _ends_unbegun(self) -> None:
        """Note that it ends now, unless it has begun: nothing in it can do so."""
        never_made = self._never_made
        if never_made is not None and inspect.getcoroutinestate(self._making) == inspect.CORO_CREATED:
            self._never_made = None
            never_made()

    async def __aenter__(self) -> G:
        self._made = await self._making
        return self._made  # type: ignore[no-any-return]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if hasattr(type(self._made), "__aexit__"):
            await self._made.__aexit__(kind, error, trace)


def entered(function: Callable[P, Coroutine[Any, Any, G]]) -> Callable[P, Entering[G]]:
    """Have a coroutine function that makes a group return what can be entered, too."""

    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def enter(*args: P.args, **kwargs: P.kwargs) -> Entering[G]:
        try:
            making = function(*args, **kwargs)
        except TypeError as error:
            meant = argument_hint(kwargs, known)
            if not meant:
                raise
            raise TypeError(f"{str(error).partition('. Did you')[0]}{meant}") from None
        return Entering(making)

    return enter
