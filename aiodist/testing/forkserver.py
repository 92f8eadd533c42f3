"""Server that ranks of `@spmd` tests are forked from, after it has imported what every rank needs.

A rank that is started anew spends nearly a second of a core on imports; one that is forked, a tenth of that.
The server has one thread, no loop and no descriptors but its own, so forking is safe. There are several:
Python orders sets and dicts of strings by a number of the process, and ranks must not agree on it.

    request:  length (8 bytes), JSON; beside it the descriptors: status, output, failures
    answers, on the status socket:  the rank's pid, then its exit code, each as a line
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass

from aiodist.net.descriptors import receive

FAILURES = "AIODIST_SPMD_FAILURES"  # names the descriptor on which ranks say when they fail
SERVERS = 2
_HEAD = 8
# Whatever `init_process_group` imports only when it is called; pytest, because tests import it.
_IMPORTED = (
    "numpy",
    "pytest",
    "uvloop",
    "aiodist.backends.host",
    "aiodist.group",
    "aiodist.rendezvous",
    "aiodist.runtime.joining",
    "aiodist.testing",
    "aiodist.testing.worker",
    "aiodist.transport",
)


@dataclass(frozen=True)
class Request:
    """Request for a rank: its `sys.argv`, environment and working directory."""

    arguments: list[str]
    env: dict[str, str]
    folder: str


# Not as a module that is run: it would be imported a second time.
_RUN = """
import socket, sys
from aiodist.testing.forkserver import serve
serve(socket.socket(fileno=int(sys.argv[1])))
from aiodist.testing.worker import main
main()
"""


class ForkServer:
    """The caller's handle on one server."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._requests, theirs = socket.socketpair()
        self._turn = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _RUN, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )

    def ask(self, request: Request, descriptors: Sequence[int]) -> None:
        """Have it fork a rank, from any thread. Status, output and failures: they stay the caller's."""
        data = json.dumps(asdict(request)).encode()
        with self._turn:
            socket.send_fds(self._requests, [len(data).to_bytes(_HEAD, "big")], descriptors)
            self._requests.sendall(data)

    def close(self) -> None:
        """End the server; ranks that it has forked go on."""
        if self._pid == os.getpid():  # else this process is a fork of the one that started it
            self._requests.close()
            self._process.wait()


@functools.cache
def servers() -> tuple[ForkServer, ...]:
    """The servers of this process, which live as long as it does."""
    started = tuple(ForkServer() for _ in range(SERVERS))
    for server in started:
        atexit.register(server.close)
    return started


class Forked:
    """One rank, as asyncio's subprocesses are. Closed by `wait`.

    Args:
        rank: of the rank.
        arguments: of `aiodist.testing.worker`.
        env: its whole environment.
        output: descriptor of its stdout and stderr; it stays the caller's.
        failures: likewise, the one whose number FAILURES tells the rank.
    """

    def __init__(
        self, rank: int, arguments: Sequence[str], env: Mapping[str, str], output: int, failures: int
    ) -> None:
        self.returncode: int | None = None
        self._status, theirs = socket.socketpair()
        with ExitStack() as kept:
            kept.callback(self._status.close)
            with theirs:
                request = Request(list(arguments), dict(env), os.getcwd())
                servers()[rank % SERVERS].ask(request, [theirs.fileno(), output, failures])
            line = b""
            while not line.endswith(b"\n"):  # and not a byte of what comes behind
                byte = self._status.recv(1)
                if not byte:
                    raise ConnectionResetError("the server that ranks are forked from has ended")
                line += byte
            kept.pop_all()
        self.pid = int(line)
        self._status.setblocking(False)

    async def wait(self) -> int:
        """Wait for its end → its exit code, negative for a signal."""
        if self.returncode is None:
            line = await asyncio.get_running_loop().sock_recv(self._status, 16)
            self._status.close()
            if not line:
                raise ConnectionResetError("the process that waits for a rank was killed")
            self.returncode = int(line)
        return self.returncode


def serve(requests: socket.socket) -> None:
    """The server's life. It returns in the ranks alone, as what `aiodist.testing.worker` expects to find."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps who waits for a rank
    for name in _IMPORTED:
        with suppress(ModuleNotFoundError):  # uvloop and pytest may not be there
            importlib.import_module(name)
    while True:
        head, descriptors = receive(requests, _HEAD, 3)
        if not head:
            os._exit(0)
        data, length = bytearray(), int.from_bytes(head, "big")
        while len(data) < length:
            data += requests.recv(length - len(data))
        if os.fork() == 0:
            requests.close()
            return _fork(Request(**json.loads(bytes(data))), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork(request: Request, status: int, output: int, failures: int) -> None:
    """Fork the rank and wait for its end. It returns in the rank alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(BrokenPipeError):
            os.write(status, b"%d\n" % code)
        os._exit(0)
    os.setsid()
    os.write(status, b"%d\n" % os.getpid())
    os.close(status)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.env, **{FAILURES: str(failures)})
    sys.argv[1:] = request.arguments
    sys.path[0] = request.folder  # as after `python -m`
