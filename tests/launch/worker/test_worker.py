"""One process: started, seen to end, and nothing of it left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence

import pytest

from aiodist.errors import UsageError
from aiodist.launch.worker.guardian import Guardian, die_with_parent
from aiodist.launch.worker.lines import LastWords
from aiodist.launch.worker.output import Relay
from aiodist.launch.worker.worker import Worker, spawn


class FakeGuardian(Guardian):
    """Remembers instead of forking."""

    def __init__(self) -> None:
        self.groups: set[int] = set()

    def add(self, group: int) -> None:
        self.groups.add(group)

    def remove(self, group: int) -> None:
        self.groups.remove(group)


def start(guardian: Guardian, *command: str) -> Worker:
    loop = asyncio.get_running_loop()

    def relays(out: int, err: int, words: LastWords) -> Sequence[Relay]:
        return [Relay(loop, out, console=None), Relay(loop, err, console=None, words=words)]

    return spawn(
        command, os.environ, stdin=None, guardian=guardian, tie=die_with_parent(), make_relays=relays
    )


async def ended(worker: Worker) -> int:
    over = asyncio.Event()
    worker.watch(asyncio.get_running_loop(), over.set)
    await over.wait()
    assert worker.code is not None
    return worker.code


@pytest.fixture
async def guardian() -> AsyncIterator[FakeGuardian]:
    guardian = FakeGuardian()
    yield guardian
    assert not guardian.groups


PYTHON = (sys.executable, "-c")


async def test_code_and_last_words_are_there_when_it_has_ended(guardian: FakeGuardian) -> None:
    worker = start(guardian, *PYTHON, "import sys; sys.stderr.write('bye'); sys.exit(7)")
    assert guardian.groups == {worker.pid}
    assert await ended(worker) == 7
    assert worker.words.excerpt() == ("bye",)
    await worker.sweep(0.1)


async def test_a_signal_is_a_negative_code(guardian: FakeGuardian) -> None:
    worker = start(guardian, *PYTHON, "import signal; signal.pause()")
    worker.send(signal.SIGKILL)
    assert await ended(worker) == -signal.SIGKILL
    assert worker.asked == signal.SIGKILL
    worker.send(signal.SIGTERM)
    assert worker.asked == signal.SIGKILL, "it had ended already"
    await worker.sweep(0.1)


async def test_what_it_left_behind_is_ended(guardian: FakeGuardian) -> None:
    """A child that ignores SIGTERM holds the pipe whose end we wait for."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    child = "import signal,os; signal.signal(15, signal.SIG_IGN); os.write(1, b'up'); signal.pause()"
    code = (
        f"import subprocess,sys\np = subprocess.Popen([sys.executable, '-c', {child!r}],"
        " stdout=subprocess.PIPE, close_fds=False)\np.stdout.read(2)\n"
    )
    # Popen of the agent closes what it does not hand on, so the shell opens our pipe by its name
    worker = start(
        guardian, "/bin/sh", "-c", f'exec {sys.executable} -c "$0" 9>/proc/{os.getpid()}/fd/{write}', code
    )
    assert await ended(worker) == 0
    os.close(write)
    await worker.sweep(0.1)
    assert os.read(read, 1) == b""
    os.close(read)


async def test_a_command_that_is_not_there(guardian: FakeGuardian) -> None:
    with pytest.raises(UsageError, match=r"cannot run '/no/such/program': No such file"):
        start(guardian, "/no/such/program")
