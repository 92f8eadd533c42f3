"""What takes longer than its time is cancelled, and an error of the caller's says so; all else passes."""

from __future__ import annotations

import asyncio
import errno

import pytest

from aiodist.net.within import happens, within
from aiodist.testing import run_virtual


class Late(Exception):
    """The caller's error."""


def test_what_takes_too_long_is_cancelled_and_said_in_the_callers_words() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        cancelled = False
        with pytest.raises(Late, match="after 2 s") as raised:
            async with within(2.0, lambda: Late(f"after {loop.time():g} s")):
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    cancelled = True
                    raise
        assert cancelled
        assert raised.value.__suppress_context__
        assert loop.time() == 2.0

    run_virtual(main())


async def test_what_is_in_time_is_left_alone() -> None:
    async def inside() -> str:
        async with within(60.0, Late):
            return "done"

    assert await inside() == "done"


@pytest.mark.parametrize("error", [OSError(errno.ETIMEDOUT, "the network's"), TimeoutError(), KeyError()])
async def test_errors_of_what_is_inside_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        async with within(60.0, Late):
            raise error
    assert raised.value is error


def test_a_cancellation_from_outside_passes() -> None:
    async def main() -> None:
        async def inside() -> None:
            async with within(60.0, Late):
                await asyncio.sleep(30)

        task = asyncio.ensure_future(inside())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())


@pytest.mark.parametrize(("at", "seconds", "expected"), [(1.0, 2.0, True), (3.0, 2.0, False), (0, 0.0, True)])
def test_an_event_is_waited_for_as_long_as_is_said(at: float, seconds: float, expected: bool) -> None:
    async def main() -> None:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        if at:
            loop.call_at(at, event.set)
        else:
            event.set()
        assert await happens(event, seconds) is expected
        assert loop.time() == min(at, seconds)

    run_virtual(main())
