"""Which line called the library."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aiodist import callers
from aiodist.callers import Line, Whose, calling_line, warn_of_line, whose


def test_the_line_that_called() -> None:
    line = calling_line()
    assert line == Line(__file__, test_the_line_that_called.__code__.co_firstlineno + 1)


async def test_a_callback_of_the_loop_was_called_by_no_line() -> None:
    code = compile("found = calling_line()", calling_line.__code__.co_filename, "exec")  # as in the library
    names: dict[str, Any] = {"calling_line": calling_line}
    asyncio.get_running_loop().call_soon(exec, code, names)
    await asyncio.sleep(0)
    assert names["found"] is None


def test_a_line_that_is_known_and_one_that_lets_go() -> None:
    class Dropped:
        def __init__(self, line: Line | None) -> None:
            self.line = line

        def __del__(self) -> None:
            warn_of_line("wrong", self.line, "look there", self)

    with pytest.warns(RuntimeWarning) as warned:
        Dropped(Line("train.py", 7))
        Dropped(None)
    line = test_a_line_that_is_known_and_one_that_lets_go.__code__.co_firstlineno + 10
    assert [(str(one.message), one.filename, one.lineno) for one in warned] == [
        ("wrong", "train.py", 7),
        ("wrong", __file__, line),
    ]


def test_the_benchmark_is_a_program_of_the_librarys_and_the_rest_of_the_package_is_the_library() -> None:
    package = Path(callers.__file__).parent
    assert whose(str(package / "bench" / "calls.py")) is Whose.program
    assert whose(str(package / "benches.py")) is Whose.ours
    assert whose(str(package / "ddp" / "sync.py")) is Whose.ours
