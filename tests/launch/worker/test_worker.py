"""One process: started, seen to end, and nothing of it left."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence

import pytest

from aiodist.base.errors import UsageError
from aiodist.launch.worker.guardian import Order
from aiodist.launch.worker.lines import LastWords
from aiodist.launch.worker.output import Relay
from aiodist.launch.worker.spawner import Spawner
from aiodist.launch.worker.states import state_of
from aiodist.launch.worker.worker import Worker, ask_all, spawn

# pytest has threads of its own.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    spawner = Spawner.start()
    yield spawner
    spawner.close()


def begin(spawner: Spawner, *command: str, stdin: int | None = None) -> Worker:
    """A worker of which is not known yet whether it runs."""
    loop = asyncio.get_running_loop()

    def relays(out: int, err: int, words: LastWords) -> Sequence[Relay]:
        return [Relay(loop, out, console=None), Relay(loop, err, console=None, words=words)]

    return spawn(Order(list(command), dict(os.environ), 0.1, False), spawner, stdin, relays)


def start(spawner: Spawner, *command: str, stdin: int | None = None) -> Worker:
    worker = begin(spawner, *command, stdin=stdin)
    worker.confirm()
    return worker


async def ended(worker: Worker) -> int:
    over = asyncio.Event()
    worker.watch(over.set)
    await over.wait()
    assert worker.code is not None
    return worker.code


PYTHON = (sys.executable, "-c")


async def test_code_and_last_words_are_there_when_it_has_ended(spawner: Spawner) -> None:
    worker = start(spawner, *PYTHON, "import sys; sys.stderr.write('bye'); sys.exit(7)")
    assert await ended(worker) == 7
    assert worker.words.excerpt() == ("bye",)
    await worker.sweep()


async def test_a_signal_is_a_negative_code(spawner: Spawner) -> None:
    worker = start(spawner, *PYTHON, "import signal; signal.pause()")
    worker.send(signal.SIGKILL)
    assert await ended(worker) == -signal.SIGKILL
    assert worker.asked == signal.SIGKILL
    worker.send(signal.SIGTERM)
    assert worker.asked == signal.SIGKILL, "it had ended already"
    await worker.sweep()


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors of processes are Linux's")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
async def test_all_are_asked_before_the_first_one_ends(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals
) -> None:
    workers = [start(spawner, "sleep", "1000") for _ in range(3)]
    at_first: list[list[str]] = []
    forward = Worker.forward

    def spied(worker: Worker, number: int, *, group: bool = False) -> None:
        if not at_first:
            while (states := [state_of(one.pid) for one in workers]) != ["T"] * 3:
                os.sched_yield()
            at_first.append(states)
        forward(worker, number, group=group)

    monkeypatch.setattr(Worker, "forward", spied)
    ask_all(workers, signum)
    assert at_first == [["T"] * 3]
    assert await asyncio.gather(*map(ended, workers)) == [-signum] * 3
    assert [worker.asked for worker in workers] == [signum] * 3
    ask_all(workers, signum)  # nobody is there any more
    for worker in workers:
        await worker.sweep()


async def test_where_there_are_no_descriptors_their_guardians_ask_them(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(os, "pidfd_open", none)
    workers = [start(spawner, *PYTHON, "import signal; signal.pause()") for _ in range(2)]
    ask_all(workers, signal.SIGTERM)
    assert await asyncio.gather(*map(ended, workers)) == [-signal.SIGTERM] * 2
    for worker in workers:
        await worker.sweep()


async def test_who_is_stopped_ends_when_it_is_asked_to(spawner: Spawner) -> None:
    code = (
        "import os, signal; signal.signal(15, lambda *_: os._exit(7)); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    worker = start(spawner, *PYTHON, f"{code}; signal.pause()")
    while state_of(worker.pid) != "T":
        os.sched_yield()
    worker.send(signal.SIGTERM)
    assert await ended(worker) == 7
    await worker.sweep()


async def test_what_it_left_behind_is_ended(spawner: Spawner) -> None:
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
        spawner, "/bin/sh", "-c", f'exec {sys.executable} -c "$0" 9>/proc/{os.getpid()}/fd/{write}', code
    )
    assert await ended(worker) == 0
    os.close(write)
    await worker.sweep()
    assert os.read(read, 1) == b""
    os.close(read)


async def test_a_command_that_is_not_there(spawner: Spawner) -> None:
    worker = begin(spawner, "/no/such/program")
    with pytest.raises(UsageError, match=r"cannot run '/no/such/program': No such file"):
        worker.confirm()
    worker.send(signal.SIGKILL)
    await worker.sweep()


async def test_start_that_is_given_up(spawner: Spawner) -> None:
    """Another worker cannot be run: this one is ended before anybody heard of it."""
    worker = begin(spawner, *PYTHON, "input()")
    worker.send(signal.SIGKILL)
    await worker.sweep()
    assert worker.code == -signal.SIGKILL


async def test_guardian_that_somebody_killed(spawner: Spawner) -> None:
    """Its worker is killed with it, and that is how it ended."""
    worker = start(
        spawner, *PYTHON, "import os, sys; sys.stderr.write('up'); os.kill(os.getppid(), 9); input()"
    )
    assert await ended(worker) == -signal.SIGKILL
    assert worker.ended_ns > 0
    await worker.sweep()


async def test_worker_reads_what_it_is_given(spawner: Spawner) -> None:
    read, write = os.pipe()
    worker = start(spawner, *PYTHON, "import sys; sys.exit(len(sys.stdin.read()))", stdin=read)
    os.write(write, b"hello")
    os.close(write)
    os.close(read)
    assert await ended(worker) == 5
    await worker.sweep()
    nothing = start(spawner, *PYTHON, "import sys; sys.exit(len(sys.stdin.read()))")
    assert await ended(nothing) == 0
    await nothing.sweep()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ETOOMANYREFS])
@pytest.mark.parametrize(
    "where", ["os.open", "os.pipe", "first relay", "socket.socketpair", "socket.send_fds"]
)
async def test_agent_that_lacks_descriptors(
    spawner: Spawner, where: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, blames nobody else, and leaves none open; the next one can be started."""

    def failing(*_args: object, **_more: object) -> None:
        raise OSError(number, os.strerror(number))

    def second_pipe() -> tuple[int, int]:
        monkeypatch.setattr(os, "pipe", failing)
        return plainly()

    plainly = os.pipe
    if where == "os.pipe":
        monkeypatch.setattr(os, "pipe", second_pipe)
    elif where == "first relay":
        monkeypatch.setitem(globals(), "Relay", failing)
    else:
        module, name = where.split(".")
        monkeypatch.setattr({"os": os, "socket": socket}[module], name, failing)
    said = r"^no worker can be started: this agent has .* file descriptor.* ulimit -n"
    with pytest.raises(UsageError, match=said):
        begin(spawner, *PYTHON, "pass")
    monkeypatch.undo()
    worker = start(spawner, *PYTHON, "pass")
    assert await ended(worker) == 0
    await worker.sweep()
