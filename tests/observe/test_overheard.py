"""Errors that nobody waits for are noted, and go where they went before."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from aiodist.observe.overheard import Overheard
from aiodist.observe.recorder import read
from tests.observe.recorder.made import a_recorder


def fail() -> None:
    raise OSError(28, "No space left on device")


def test_the_error_of_a_callback_is_noted_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = a_recorder()
    heard: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def before(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            heard.append(context)

        loop.set_exception_handler(before)
        overheard = Overheard(loop, recorder)
        loop.call_exception_handler({"message": "in a callback", "exception": _error()})
        loop.call_exception_handler({"message": "no error\n"})
        overheard.close()
        assert loop.get_exception_handler() is before
        overheard.close()
        second = Overheard(loop, recorder)
        loop.set_exception_handler(None)  # somebody else's
        second.close()
        assert loop.get_exception_handler() is None

    def _error() -> BaseException:
        try:
            fail()
        except OSError as error:
            return error
        raise AssertionError

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_exception_handler", _REAL)
    asyncio.run(main())
    first, second = (event.text for event in read(recorder._memory).events)
    assert first.startswith("in a callback: OSError: [Errno 28] No space left on device (")
    assert first.endswith("in fail)")
    assert second == "no error"
    assert len(heard) == 2


def test_jobs_that_begin_and_end_by_turns_in_a_loop_make_no_chain() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        first = Overheard(loop, a_recorder())
        for _ in range(20):  # the next one begins before this one ends
            second = Overheard(loop, a_recorder())
            first.close()
            first = second
        assert first._before is None
        first.close()
        assert loop.get_exception_handler() is None

    asyncio.run(main())


_REAL = asyncio.BaseEventLoop.call_exception_handler  # tests otherwise put their own in its place

_PROGRAM = """
import asyncio
from aiodist.observe.overheard import Overheard
from aiodist.observe.recorder import read
from tests.observe.recorder.made import a_recorder
import atexit

recorder = a_recorder()
loop = asyncio.new_event_loop()
kept = Overheard(loop, recorder)
loop.close()

def tell():
    print([event.text for event in read(recorder._memory).events])

import aiodist.observe.overheard as module
atexit.unregister(module._at_exit)
atexit.register(tell)
atexit.register(module._at_exit)
raise ValueError("bad data")
"""


def test_the_exception_that_ends_a_program_is_noted() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60)
    assert "the program ended by ValueError: bad data" in done.stdout, done.stderr
