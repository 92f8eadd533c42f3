"""`run`: a coroutine on the fastest loop there is, and its groups closed at the end, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aiodist.backends.forgotten import taken_late
from aiodist.base.errors import UsageError
from aiodist.group.default import find_default
from aiodist.group.runtime import tracebacks
from aiodist.group.runtime.interrupts import Interrupts
from aiodist.group.runtime.simulated import current

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Run a coroutine on a uvloop event loop (asyncio's own where uvloop has no build) and return its result.

    Groups that are still open when it returns are closed; when it raises, they are aborted first, so that
    peers learn of it at once. Ctrl-C cancels the coroutine, as with `asyncio.run`; a step without an await
    that goes on for half a second gets the KeyboardInterrupt itself.

    Raises:
        UsageError: `main` is no coroutine, or a loop runs in this thread already.
    """
    tracebacks.install()
    _check(main)
    interrupts = Interrupts()
    try:
        with asyncio.Runner(debug=debug, loop_factory=loop_factory()) as runner:
            return runner.run(_guarded(main, interrupts.begin))
    finally:
        interrupts.end()


def _check(main: object) -> None:
    if not asyncio.iscoroutine(main):
        name = getattr(main, "__name__", "main")
        calls = (
            f"Call it: dist.run({name}())" if asyncio.iscoroutinefunction(main) else "Write dist.run(main())"
        )
        raise UsageError(f"run needs a coroutine, got {type(main).__name__}", hint=calls)
    if asyncio._get_running_loop() is not None:
        main.close()  # else Python warns of it, too
        raise UsageError(
            "run was called where an event loop runs already, in a notebook perhaps",
            hint="Write `await main()` there, or use aiodist.portal",
        )


async def _guarded(main: Coroutine[Any, Any, T], begin: Callable[[], None]) -> T:
    begin()
    try:
        result = await main
    except BaseException as error:
        group = find_default()
        if group is not None:
            # Like `async with`: peers are told why, and hear of it before the connections end.
            await asyncio.shield(group.__aexit__(type(error), error, error.__traceback__))
        raise
    group = find_default()
    if group is not None:
        await group.aclose()
    loop = asyncio._get_running_loop()  # none in a child that `main` has forked: the groups are its parent's
    late = None if loop is None else taken_late(loop)  # main's variables are gone, and handles with them
    if late is not None:
        raise late
    return result


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    place = current.get()
    if place is not None:
        return place.new_loop
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
