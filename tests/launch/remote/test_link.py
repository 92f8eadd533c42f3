"""An agent's end of the pipes: what is in them, however it is cut, is heard in its order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from aiodist.base.errors import RendezvousTimeout
from aiodist.launch.remote.link import Link
from aiodist.launch.remote.messages import Address, Signal, Task, encode

TASK = Task(("train.py",), {"NAME": "a\nb"}, "/work", "a", 1, 2, 0, ())
LONG = 30.0


class Launcher:
    """A launcher, as far as one end of a pipe is it, and the link to it."""

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self.link = Link(read)
        self._read = read

    def say(self, data: bytes) -> None:
        """Write so many bytes."""
        os.write(self._write, data)

    def leave(self) -> None:
        """End, as far as the agent sees it."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def close(self) -> None:
        """Close both ends."""
        self.leave()
        os.close(self._read)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def test_the_task_is_the_first_that_counts(launcher: Launcher) -> None:
    launcher.say(encode(Address("")) + b"no message\n" + encode(TASK))
    assert launcher.link.task() == TASK


@pytest.mark.parametrize("said", [b"", encode(Address("")), encode(TASK)[:-1]])
def test_a_launcher_that_leaves_before_it_gave_a_task(launcher: Launcher, said: bytes) -> None:
    launcher.say(said)
    launcher.leave()
    assert launcher.link.task() is None


@pytest.mark.parametrize("behind", [0, 1, 8], ids=["not yet", "in part", "whole"])
async def test_the_address_comes_behind_the_task_or_later(launcher: Launcher, behind: int) -> None:
    address = encode(Address("h:1"))
    cut = len(address) * behind // 8 if behind < 8 else len(address)
    launcher.say(encode(TASK) + encode(Address("")) + address[:cut])
    assert launcher.link.task() == TASK
    launcher.link.open(asyncio.get_running_loop(), lambda: None, LONG)
    asked = asyncio.ensure_future(launcher.link.ask())
    launcher.say(address[cut:] + encode(Address("later:2")))
    assert await asked == "h:1"
    launcher.leave()


async def test_an_address_that_never_comes(launcher: Launcher) -> None:
    launcher.link.open(asyncio.get_running_loop(), lambda: None, 0.01)
    with pytest.raises(RendezvousTimeout, match="the launcher did not say where node 0 listens"):
        await launcher.link.ask()
    launcher.leave()


async def test_a_signal_is_this_processs_and_the_end_is_heard_once(launcher: Launcher) -> None:
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    left = asyncio.Event()

    def leave() -> None:
        seen.append("left")
        left.set()

    heard = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, heard.set)
    try:
        launcher.link.open(loop, leave, LONG)
        launcher.say(encode(Signal("SIGNOTHING")) + encode(Signal("SIGUSR1")))
        await heard.wait()
        launcher.leave()
        await left.wait()
        assert seen == ["left"]
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
