"""Calls as lines: those of the program, and the innermost, whosever it is."""

from __future__ import annotations

import selectors
import sys
import threading
from pathlib import Path

import aiodist.base.callers
from aiodist.observe.frames import FrameCall, beside, calls_of, stacks, telling

HERE = Path(__file__).name


def test_the_calls_of_a_frame_the_innermost_first() -> None:
    def inner() -> list[FrameCall]:
        return list(calls_of(sys._getframe(0)))

    calls = inner()
    assert [call.function for call in calls[:2]] == ["inner", "test_the_calls_of_a_frame_the_innermost_first"]
    assert calls[1].line == calls[0].line + 2
    assert str(calls[0]).endswith(f"{HERE}:{calls[0].line} in inner")
    assert list(calls_of(None)) == []


def test_of_libraries_only_the_innermost_is_told() -> None:
    mine, theirs = FrameCall("/home/u/train.py", 3, "step"), FrameCall(selectors.__file__, 5, "select")
    ours = FrameCall(aiodist.base.callers.__file__, 7, "whose")
    lines = telling([theirs, ours, mine, theirs, mine])
    assert [line.rpartition("/")[2] for line in lines] == ["selectors.py:5 in select"] + 2 * [
        "train.py:3 in step"
    ]
    assert telling([]) == ()


def test_threads_that_are_in_no_call_of_the_programs_are_left_out() -> None:
    mine, theirs = FrameCall("/home/u/train.py", 3, "step"), FrameCall(selectors.__file__, 5, "select")
    lines = beside({16: [theirs, mine], 17: [theirs]})
    assert lines[0] == "thread 0x10"
    assert len(lines) == 3 and all(line.startswith("  ") for line in lines[1:])


def test_what_the_threads_of_this_process_do() -> None:
    go, ready = threading.Event(), threading.Event()

    def work() -> None:
        ready.set()
        go.wait()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        own, others = stacks(threading.get_ident())
        assert any(line.endswith("in test_what_the_threads_of_this_process_do") for line in own)
        assert any(line.endswith("in work") for line in others)
        assert not any(line.endswith("in work") for line in own)
        of_it, rest = stacks(thread.ident or 0)
        assert any(line.endswith("in work") for line in of_it)
        assert any(line.endswith("in test_what_the_threads_of_this_process_do") for line in rest)
    finally:
        go.set()
        thread.join()
    assert stacks(thread.ident or 0)[0] == ()  # it has ended
