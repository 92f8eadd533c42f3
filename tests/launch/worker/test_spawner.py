"""Workers started by the spawner: what they get, what goes wrong, and what ends with whom."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiodist.base.errors import UsageError
from aiodist.launch.worker import guardian as guardian_module
from aiodist.launch.worker.guardian import Order
from aiodist.launch.worker.spawner import Spawner, answer
from tests.levels import few

# pytest has threads of its own.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere orphans cannot be adopted")


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    spawner = Spawner.start()
    yield spawner
    spawner.close()


def run(spawner: Spawner, order: Order) -> socket.socket:
    """The control socket of a worker that runs."""
    control = spawner.spawn(order, 0, 1, 2)
    try:
        answer(control, order.argv[0])
    except UsageError:
        control.close()
        raise
    control.setblocking(True)
    return control


class Started:
    """A worker and what it writes."""

    def __init__(self, spawner: Spawner, code: str, *, leave: bool = False, grace: float = 0.0) -> None:
        self._read, write = os.pipe()
        order = Order([sys.executable, "-c", code], {**os.environ, "ODD": "\udc80"}, grace, leave)
        with open(os.devnull, "r+b") as null:
            self.control = spawner.spawn(order, null.fileno(), write, null.fileno())
        os.close(write)
        self.pid = answer(self.control, order.argv[0])
        self.control.setblocking(True)

    def line(self) -> str:
        """What it writes next."""
        line = b""
        while not line.endswith(b"\n"):
            data = os.read(self._read, 1)
            assert data, "it has ended"
            line += data
        return line.decode().strip()

    def end(self) -> list[dict[str, int]]:
        """All that its guardian says, once nothing is left; nobody holds its output any more."""
        said = b""
        while data := self.control.recv(4096):
            said += data
        self.control.close()
        while os.read(self._read, 4096):
            pass
        os.close(self._read)
        return [json.loads(line) for line in said.splitlines()]


DAEMON = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # before its worker may have ended
if not os.fork():
    os.setsid()
    if not os.fork():
        print(os.getpid(), flush=True)
        signal.pause()
    os._exit(0)
os.wait()
"""


def test_worker_has_what_was_ordered(spawner: Spawner) -> None:
    code = "import os, sys; print(ascii(os.environ['ODD']), os.getsid(0), os.getpid(), os.listdir('/dev/fd'))"
    worker = Started(spawner, code)
    odd, session, pid, *fds = worker.line().split(maxsplit=3)
    assert (odd, session, pid) == ("'\\udc80'", str(worker.pid), str(worker.pid))
    assert len(fds[0].split()) == 4, "0, 1, 2, and what lists them"
    [told] = worker.end()
    assert told["code"] == 0


@pytest.mark.parametrize("code", ["sys.exit(7)", "os.kill(os.getpid(), 9)", "os.abort()"])
def test_code(spawner: Spawner, code: str) -> None:
    [told] = Started(spawner, f"import os, sys\n{code}").end()
    assert told["code"] == {"sys.exit(7)": 7, "os.abort()": -signal.SIGABRT}.get(code, -9)


def test_signals_are_for_the_worker_or_its_group(spawner: Spawner) -> None:
    code = r"""
import os, signal, sys
read, write = os.pipe()
if not os.fork():
    os.write(1, b"child\n")
    signal.pause()
os.write(1, b"worker\n")
os.wait()
"""
    worker = Started(spawner, f"import signal; signal.signal(signal.SIGUSR1, lambda *_: None)\n{code}")
    assert {worker.line(), worker.line()} == {"child", "worker"}
    worker.control.send(b"10 0\n")
    worker.control.send(b"2 1\n")
    [told] = worker.end()
    assert told["code"] == -signal.SIGINT


@pytest.mark.parametrize("argv", [["/no/such/program"], ["/etc/passwd"], ["x" * (1 << 21)]])
def test_what_cannot_be_run(spawner: Spawner, argv: list[str]) -> None:
    with pytest.raises(
        UsageError, match=r"^cannot run '.*': (No such file|Permission denied|Argument list|File name)"
    ):
        run(spawner, Order(argv, {}, 0.0, False))
    assert Started(spawner, "pass").end()[0]["code"] == 0, "the next one can"


def test_orders_of_any_size(spawner: Spawner) -> None:
    order = Order([sys.executable, "-c", "pass"], {f"V{n}": "x" * 50_000 for n in range(20)}, 0.0, False)
    control = run(spawner, order)
    assert json.loads(control.recv(4096))["code"] == 0
    assert control.recv(1) == b""
    control.close()


@linux
@pytest.mark.parametrize("how", ["worker", "control", "SIGKILL"])
def test_daemon_ends(spawner: Spawner, how: str) -> None:
    """With its worker, with the agent's end of the control socket, and when the agent has no patience."""
    before = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
    worker = Started(
        spawner,
        before + DAEMON + "signal.sigwait({signal.SIGUSR1})",
        grace=99.0 if how == "SIGKILL" else 0.0,
    )
    daemon = os.pidfd_open(int(worker.line()))
    if how == "worker":
        worker.control.send(b"10 0\n")
    elif how == "control":
        worker.control.shutdown(socket.SHUT_WR)
    elif how == "SIGKILL":
        worker.control.send(b"9 1\n")
    told = worker.end()
    assert [one["code"] for one in told] == ({"worker": [0], "control": [], "SIGKILL": [-9]})[how]
    assert select.select([daemon], [], [], 0)[0] == [daemon]
    os.close(daemon)


@linux
def test_who_is_left_alone_by_the_agent_is_asked_first(spawner: Spawner) -> None:
    """SIGTERM for the worker and what it has started; both have time to do something about it."""
    code = """
import os, signal
def end(*_):
    os.write(1, b"asked\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
if not os.fork():
    os.setsid()
os.write(1, b"up\\n")
while True: signal.pause()
"""
    worker = Started(spawner, code, grace=99.0)
    assert [worker.line(), worker.line()] == ["up", "up"]
    worker.control.shutdown(socket.SHUT_WR)
    assert [worker.line(), worker.line()] == ["asked", "asked"]
    assert worker.end() == []


@linux
def test_daemon_is_left(spawner: Spawner) -> None:
    worker = Started(spawner, DAEMON, leave=True)
    pid = int(worker.line())
    assert json.loads(worker.control.recv(4096))["code"] == 0
    assert worker.control.recv(1) == b""
    os.kill(pid, signal.SIGKILL)
    worker.end()


@pytest.mark.parametrize("how", ["worker", "control"])
def test_process_group_ends_where_nothing_else_can_be_had(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: without adoption, pidfds and /proc. Spawner and guardian are forks of this process."""
    monkeypatch.setattr(guardian_module, "adopt_orphans", lambda: False)
    monkeypatch.setattr(os.path, "isdir", lambda _path: False)
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    spawner = Spawner.start()
    code = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    os.write(1, b"up\\n")
    %s
signal.pause()
""" % ("os._exit(4)" if how == "worker" else "pass")
    worker = Started(spawner, code)
    assert worker.line() == "up"
    if how == "control":
        worker.control.shutdown(socket.SHUT_WR)
    assert [told["code"] for told in worker.end()] == ([4] if how == "worker" else [])
    spawner.close()


@linux
def test_worker_dies_with_its_guardian(spawner: Spawner) -> None:
    worker = Started(spawner, "import os, signal; print(os.getppid(), flush=True); signal.pause()")
    os.kill(int(worker.line()), signal.SIGKILL)
    assert worker.end() == []


def test_signals_of_the_terminal_are_not_theirs(spawner: Spawner) -> None:
    worker = Started(spawner, "import os, signal; print(os.getppid(), flush=True); signal.pause()")
    guardian = int(worker.line())
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        os.kill(guardian, signum)
        os.kill(spawner.pid, signum)
    worker.control.send(b"15 0\n")
    assert worker.end()[0]["code"] == -signal.SIGTERM


@pytest.mark.parametrize("closed", few(["<&-", "<&- >&-", ">&-", "2>&-", "<&- >&- 2>&-"], ["<&- >&- 2>&-"]))
def test_agent_without_standard_descriptors(closed: str, tmp_path: Path) -> None:
    code = (
        "import os, sys; from aiodist.launch.worker.guardian import Order\n"
        "from aiodist.launch.worker.spawner import Spawner, answer\n"
        "spawner = Spawner.start()\n"
        "null = os.open('/dev/null', os.O_RDWR)\n"
        "control = spawner.spawn(Order(['/bin/sh', '-c', 'exit 5'], {}, 0.0, False), null, null, null)\n"
        "answer(control, 'sh')\n"
        "control.setblocking(True)\n"
        "open(sys.argv[1], 'wb').write(control.recv(4096))\n"
        "control.close(); spawner.close()"
    )
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code, str(tmp_path / "said")]
    subprocess.run(shell, check=True, timeout=60)
    assert json.loads((tmp_path / "said").read_bytes())["code"] == 5


def test_closed_spawner_leaves_nothing() -> None:
    spawner = Spawner.start()
    worker = Started(spawner, "import signal; print('up', flush=True); signal.pause()")
    worker.line()
    worker.control.shutdown(socket.SHUT_WR)
    spawner.close()
    worker.end()


def test_spawner_that_somebody_killed_is_an_error() -> None:
    spawner = Spawner.start()
    subprocess.run(["kill", "-KILL", str(spawner.pid)], check=True)
    os.waitid(os.P_PID, spawner.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(
        UsageError, match=r"^no worker can be started: the process that starts them is gone \("
    ):
        run(spawner, Order(["x"], {}, 0.0, False))
    spawner.close()
