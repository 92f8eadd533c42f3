"""A thread that sees that the loop of its process does not turn, and where."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import uvloop

from aiodist.group.control.liveness import Patience
from aiodist.group.control.watchdog import ENDED, Watchdog, line_of
from tests.levels import COSTLY

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]
SHORT = Patience(heartbeat=0.01, warn_after=0.1, evict_after=1.0, evict_silent_after=60.0)


class Ear:
    """Hears what a watchdog says."""

    def __init__(self) -> None:
        self.turns = 0
        self.said: list[tuple[float, str]] = []
        self.spoken = threading.Event()
        self.ended: list[str] = []

    def say_blocked(self, seconds: float, where: str) -> None:
        self.said.append((seconds, where))
        self.spoken.set()

    def say_ended(self, cause: str) -> None:
        self.ended.append(cause)
        self.spoken.set()


def evaluate(ear: Ear) -> None:
    """A long step in the loop's thread."""
    assert ear.spoken.wait(60)


@pytest.mark.parametrize("factory", LOOPS)
def test_a_blocked_loop_is_told_of_with_its_line(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    ear = Ear()

    async def main() -> None:
        watchdog = Watchdog(asyncio.get_running_loop(), SHORT, ear)  # type: ignore[arg-type]
        evaluate(ear)
        watchdog.close()
        watchdog.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    seconds, where = ear.said[0]
    assert seconds >= 0.1
    path, _, place = where.partition(":")
    assert os.path.samefile(path, __file__)
    line, _, name = place.partition(" in ")
    assert name == "evaluate"
    assert int(line) == evaluate.__code__.co_firstlineno + 2
    assert not ear.ended
    assert not any(thread.name == "aiodist watchdog" for thread in threading.enumerate())


async def test_a_loop_that_turns_is_not_spoken_of() -> None:
    ear = Ear()
    watchdog = Watchdog(asyncio.get_running_loop(), SHORT, ear)  # type: ignore[arg-type]
    looks = 0
    tick = watchdog._progress.tick

    def counted(now: float, turns: int) -> float | None:
        nonlocal looks
        looks += 1
        return tick(now, turns)

    watchdog._progress.tick = counted  # type: ignore[method-assign]
    while looks < 20:
        ear.turns += 1
        await asyncio.sleep(0)
    watchdog.close()
    assert not ear.said


def test_what_is_done_besides_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    ear = Ear()
    calls: list[int] = []

    def fail(turns: int) -> None:
        calls.append(turns)
        raise ValueError("a fault of an observer's")

    async def main() -> None:
        watchdog = Watchdog(asyncio.get_running_loop(), SHORT, ear, fail)  # type: ignore[arg-type]
        evaluate(ear)
        watchdog.close()

    asyncio.run(main())
    assert ear.said
    assert calls == [0]
    assert "cannot be observed any more" in caplog.text


@pytest.mark.parametrize("factory", LOOPS)
def test_a_loop_that_was_closed_is_told_of_as_a_loss(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    ear = Ear()
    watchdogs = []

    async def main() -> None:
        watchdogs.append(Watchdog(asyncio.get_running_loop(), SHORT, ear))  # type: ignore[arg-type]

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert ear.spoken.wait(60)
    watchdogs[0]._thread.join(60)
    assert ear.ended == [ENDED]
    watchdogs[0].close()


def test_the_line_of_a_thread_is_the_users() -> None:
    assert line_of(threading.get_ident()).endswith("in test_the_line_of_a_thread_is_the_users")
    assert line_of(-1) == ""
    place: list[str] = []

    def callback(left: int, right: int) -> int:
        place.append(line_of(threading.get_ident()))
        return 0

    # Below a library's function: the innermost line outside of libraries is here again.
    subprocess.list2cmdline(map(str, [callback(1, 2)]))
    assert place[0].endswith("in callback")

    idle = threading.Event()
    thread = threading.Thread(target=idle.wait)  # nothing but a library
    thread.start()
    while "in wait" not in line_of(thread.ident or 0):
        time.sleep(0)
    idle.set()
    thread.join()


def test_a_path_in_another_folder_is_whole(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.path.abspath(__file__)
    monkeypatch.chdir(os.path.dirname(here))
    assert line_of(threading.get_ident()).startswith("test_watchdog.py:")
    monkeypatch.chdir(str(tmp_path))
    assert line_of(threading.get_ident()).startswith(here + ":")


PROGRAM = """
import asyncio, os, sys, threading
from aiodist.group.control.liveness import Patience
from aiodist.group.control.watchdog import Watchdog

class Ear:
    turns = 0
    def say_blocked(self, seconds, where): pass
    def say_ended(self, cause): pass

async def main():
    watchdog = Watchdog(asyncio.get_running_loop(), Patience(), Ear())  # type: ignore[arg-type]
    child = os.fork()
    if child == 0:
        watchdog.close()
        os._exit(sum(thread.name == "aiodist watchdog" for thread in threading.enumerate()))
    print(os.waitpid(child, 0)[1], flush=True)
asyncio.run(main())
"""


@pytest.mark.slow(COSTLY)
def test_it_keeps_no_process_alive_and_a_forked_child_has_none() -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n"
    assert done.stderr == ""
