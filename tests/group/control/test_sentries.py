"""Threads whose end tells that their process is about to end, before it has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import pytest

from aiodist.group.control.process import ProcessWatch
from aiodist.group.control.sentries import Sentries, can_watch_threads, is_exiting
from tests.levels import COSTLY

pytestmark = [
    pytest.mark.skipif(not can_watch_threads(), reason="no pidfd of a thread before Linux 6.9"),
]

PROGRAM = """
import sys
from aiodist.group.control.sentries import Sentries
sentries = Sentries()
print(*sentries.tids, flush=True)
for line in sys.stdin:
    sentries.close()
    print("closed", flush=True)
"""


@contextlib.asynccontextmanager
async def process() -> AsyncIterator[tuple[asyncio.subprocess.Process, list[int]]]:
    """A process with sentries, and their thread ids."""
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert made.stdout is not None
        yield made, [int(tid) for tid in (await made.stdout.readline()).split()]
    finally:
        if made.returncode is None:
            made.kill()
        await made.wait()


@pytest.mark.slow(COSTLY)
async def test_the_end_of_a_sentry_tells_of_a_process_that_is_killed() -> None:
    async with process() as (victim, tids):
        watch = ProcessWatch(asyncio.get_running_loop())
        told: list[tuple[str, int]] = []
        over = asyncio.Event()

        def ended(pid: int) -> None:
            told.append(("ended", pid))
            over.set()

        assert watch.watch(victim.pid, ended)
        watch.watch_sentries(victim.pid, tids, lambda pid: told.append(("exits", pid)))
        assert not is_exiting(victim.pid)
        victim.kill()
        await over.wait()
        watch.close()
        assert told[-1] == ("ended", victim.pid)
        assert set(told[:-1]) <= {("exits", victim.pid)}
        assert is_exiting(victim.pid)


@pytest.mark.slow(COSTLY)
async def test_sentries_that_are_let_go_tell_of_nothing() -> None:
    async with process() as (victim, tids):
        watch = ProcessWatch(asyncio.get_running_loop())
        told: list[int] = []
        seen = asyncio.Event()
        assert watch.watch(victim.pid, told.append)
        watch.watch_sentries(victim.pid, tids, told.append)
        assert victim.stdin is not None
        assert victim.stdout is not None
        victim.stdin.write(b"close\n")
        assert await victim.stdout.readline() == b"closed\n"
        watch._loop.call_later(0, seen.set)
        await seen.wait()  # the loop has turned, and found both ends
        assert not told
        watch.close()


async def test_nonsense_in_a_card_watches_nothing() -> None:
    watch = ProcessWatch(asyncio.get_running_loop())
    watch.watch_sentries(os.getpid(), [-1, 2**70, "7"], print)  # type: ignore[list-item]
    assert not watch._fds


def test_closing_leaves_no_thread() -> None:
    before = threading.active_count()
    sentries = Sentries()
    assert len(sentries.tids) == 2
    assert threading.active_count() == before + 2
    sentries.close()
    sentries.close()
    assert threading.active_count() == before
