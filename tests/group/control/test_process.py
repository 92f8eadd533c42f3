"""A real child that ends is noticed through its pidfd."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import pytest
import uvloop

from aiodist.base.environment.process import is_stopped
from aiodist.group.control.process import ProcessWatch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pidfd is Linux's")

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


def child() -> tuple[int, int]:
    """A child that lives until its pipe is closed → pid, the pipe's end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    return pid, write


@pytest.mark.parametrize("factory", LOOPS)
def test_end_of_a_child_is_told_once(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    pid, pipe = child()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        watch = ProcessWatch(loop)
        ended: asyncio.Future[int] = loop.create_future()
        assert watch.watch(pid, ended.set_result)  # a second call would raise
        assert watch.watch(pid, ended.set_result)  # watched already
        for _ in range(3):
            await asyncio.sleep(0)
        assert not ended.done()
        os.close(pipe)
        assert await ended == pid
        watch.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    os.waitpid(pid, 0)


async def test_closed_watch_tells_nothing() -> None:
    pid, pipe = child()
    watch = ProcessWatch(asyncio.get_running_loop())
    told: list[int] = []
    assert watch.watch(pid, told.append)
    watch.close()
    watch.close()
    os.close(pipe)
    os.waitpid(pid, 0)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not told


async def test_process_that_is_gone_cannot_be_watched() -> None:
    pid, pipe = child()
    os.close(pipe)
    os.waitpid(pid, 0)
    watch = ProcessWatch(asyncio.get_running_loop())
    assert not watch.watch(pid, print)
    watch.close()


async def test_platform_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert not ProcessWatch(asyncio.get_running_loop()).watch(os.getpid(), print)


def test_whether_a_process_is_stopped() -> None:
    pid, pipe = child()
    assert is_stopped(pid) is False
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    assert is_stopped(pid) is True
    os.kill(pid, signal.SIGCONT)
    os.waitpid(pid, os.WCONTINUED)
    assert is_stopped(pid) is False
    os.close(pipe)
    os.waitpid(pid, 0)
    assert is_stopped(pid) is None
