"""Server that rank processes of tests are forked from, after it has imported what every rank needs.

A rank that is started anew spends nearly a second of a core on imports; one that is forked, a tenth of that.
The server has one thread and no loop, so forking is safe.

    driver ──request; status, output, …──▶ server ──fork──▶ rank, the leader of a session
           ◀──pid, its pidfd; then its exit code, each a packet on the status socket──

Nothing outlives the driver, however that ends. The server watches it by a pidfd, besides the end of the
requests, which a fork of the driver could hold open; and the kernel kills the ranks with the server.

The launcher's `spawner` is no such server: it has to fork from the agent itself, before anything is imported,
and to leave a guardian with each worker.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass

import aiodist
from aiodist.launch.worker.descendants import die_with_parent
from aiodist.net.descriptors import receive, receive_message, send_message
from aiodist.testing.hosts import enter_here

SERVERS = 2
_START = 60.0  # seconds for a server to import everything and fork its first
_END = 10.0  # seconds for a killed process to be gone
_MOST = 3  # descriptors beside a request
# Whatever `init_process_group` imports only when it is called; pytest, because tests import it.
_IMPORTED = (
    "numpy",
    "pytest",
    "uvloop",
    "aiodist.backends.host",
    "aiodist.group",
    "aiodist.rendezvous",
    "aiodist.group.runtime.joining",
    "aiodist.testing.cluster",
    "aiodist.testing.conformance_backend",
    "aiodist.testing.conformance_store",
    "aiodist.testing.worker",
    "aiodist.transport",
)
# Likewise, where the driver has it: tests of the driver's import it, and each rank imports its test's module.
_IMPORTED_THERE = ("hypothesis",)


@dataclass(frozen=True)
class ForkRequest:
    """Request for a process.

    Args:
        program: 'module:function', which is called with the numbers of the descriptors that came for it.
        arguments: its `sys.argv`, from 1 on.
        env: its whole environment; None: the server's.
        folder: its working directory.
        network: its network namespace, as a path; '': the server's.
    """

    program: str
    arguments: Sequence[str]
    env: Mapping[str, str] | None
    folder: str
    network: str = ""


# Not as a module that is run: it would be imported a second time. What `serve` returns is called from here,
# so that a forked process ends as any other does.
_RUN = """
import sys
from aiodist.testing.forkserver import serve
serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])()
"""


class ForkServer:
    """The driver's handle on one server.

    Args:
        prefix: what its command begins with, to run it on another host.
        env: environment variables, beyond this process's own.
        output: descriptor for what it prints; it stays the caller's. None: as this process's.
    """

    def __init__(
        self, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None, output: int | None = None
    ) -> None:
        self._pid = os.getpid()
        self._requests, theirs = socket.socketpair()
        self._turn = threading.Lock()
        more = [name for name in _IMPORTED_THERE if name in sys.modules]
        with theirs:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-c", _RUN, str(theirs.fileno()), str(self._pid), *more],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                    **(env or {}),
                },
            )

    def ask(self, request: ForkRequest, descriptors: Sequence[int]) -> None:
        """Have it fork a process, from any thread. The descriptors stay the caller's; see `Forked`."""
        with self._turn:
            send_message(self._requests, json.dumps(asdict(request)).encode(), descriptors)

    def close(self) -> None:
        """End the server, and what it has forked."""
        if self._pid != os.getpid():  # this process is a fork of the one that started it
            return
        self._requests.close()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:  # somebody has stopped it
            self._process.kill()
            self._process.wait()


@functools.cache
def servers() -> tuple[ForkServer, ...]:
    """The servers of this process's `@spmd` tests, which live as long as it does.

    Several: Python orders sets and dicts of strings by a number of the process, and ranks must not agree on
    it.
    """
    started = tuple(ForkServer() for _ in range(SERVERS))
    for server in started:
        atexit.register(server.close)
    return started


class Forked:
    """One forked process, as asyncio's subprocesses are. Released by `wait` or `end`.

    Args:
        server: forks it; this waits until it has.
        request: what it is to be.
        output: descriptor of its stdout and stderr; it stays the caller's.
        more: descriptors for its program; likewise.

    Raises:
        OSError: the server does not answer.
    """

    def __init__(
        self, server: ForkServer, request: ForkRequest, output: int, more: Sequence[int] = ()
    ) -> None:
        self.returncode: int | None = None
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as kept:
            kept.callback(self._status.close)
            with theirs:
                server.ask(request, [theirs.fileno(), output, *more])
            self._status.settimeout(_START)
            said, pidfds = receive(self._status, 16, 1)
            if not said:
                raise ConnectionResetError("the server that ranks are forked from has ended")
            kept.pop_all()
        self.pid = int(said)
        [self._pidfd] = pidfds
        self._status.setblocking(False)

    async def wait(self) -> int:
        """Wait for its end → its exit code, negative for a signal."""
        if self.returncode is None:
            said = await asyncio.get_running_loop().sock_recv(self._status, 16)
            self._release()
            if not said:
                raise ConnectionResetError("the server that a rank was forked from was killed")
            self.returncode = int(said)
        return self.returncode

    @property
    def alive(self) -> bool:
        """Whether it lives, answering or not."""
        return self._pidfd >= 0 and not _ready(self._pidfd, 0)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens where it has ended."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def end(self) -> None:
        """Kill it and wait for its end, which takes a few ms."""
        if self._pidfd >= 0:
            self.signal(signal.SIGKILL)
            _ready(self._status.fileno(), _END)
            self._release()

    def _release(self) -> None:
        self._status.close()
        os.close(self._pidfd)
        self._pidfd = -1


def _ready(descriptor: int, seconds: float) -> bool:
    """Whether something can be read there within so many seconds; of a pidfd, that the process has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def serve(number: int, driver: int, more: Sequence[str] = ()) -> Callable[[], object]:
    """The server's life. It returns in forked processes alone: what they are to do.

    Args:
        number: of the descriptor on which the requests come.
        driver: its process.
        more: modules to import, beside those that every rank needs.
    """
    for name in (*_IMPORTED, *more):
        with suppress(ModuleNotFoundError):  # uvloop and pytest may not be there
            importlib.import_module(name)
    for name in aiodist.__all__:
        getattr(aiodist, name)
    if "pytest" in sys.modules:
        importlib.import_module("aiodist.testing.inside").prepare()
    with socket.socket(fileno=number) as requests, selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        try:
            selector.register(os.pidfd_open(driver), selectors.EVENT_READ)
        except ProcessLookupError:
            os._exit(0)
        while True:
            for key, _ in selector.select():
                if isinstance(key.data, _Child):
                    selector.unregister(key.fd)
                    key.data.ended(key.fd)
                    continue
                request = receive_message(requests, _MOST) if key.fd == number else None
                if request is None:
                    os._exit(0)
                program = _fork(selector, ForkRequest(**json.loads(request[0])), *request[1])
                if program is not None:
                    return program


@dataclass(frozen=True)
class _Child:
    """A process that the server has forked."""

    pid: int
    status: socket.socket

    def ended(self, pidfd: int) -> None:
        """Take its exit code, and tell the driver."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(pidfd)
        with self.status, suppress(OSError):  # nobody may want to know
            self.status.send(b"%d" % code)


def _fork(
    selector: selectors.BaseSelector, request: ForkRequest, status: int, output: int, *more: int
) -> Callable[[], object] | None:
    """Fork a process. → in that one, what it is to do; None in the server."""
    die_with_server = die_with_parent()
    pid = os.fork()
    if pid:
        child, pidfd = _Child(pid, socket.socket(fileno=status)), os.pidfd_open(pid)
        selector.register(pidfd, selectors.EVENT_READ, child)
        with suppress(OSError):  # the driver does not wait for it any more
            socket.send_fds(child.status, [b"%d" % pid], [pidfd])
        for descriptor in (output, *more):
            os.close(descriptor)
        return None
    die_with_server()
    for key in list(selector.get_map().values()):
        if isinstance(key.data, _Child):
            key.data.status.close()
        if isinstance(key.fileobj, int):  # else it is the socket of requests, which `serve` closes
            os.close(key.fileobj)
    os.setsid()
    for standard in (1, 2):
        os.dup2(output, standard)
    for descriptor in (status, output):
        os.close(descriptor)
    if request.network:
        enter_here(request.network)
    os.chdir(request.folder)
    if request.env is not None:
        os.environ.clear()
        os.environ.update(request.env)
    sys.argv[1:] = request.arguments
    sys.path[0] = request.folder  # as after `python -m`
    module, _, function = request.program.partition(":")
    return functools.partial(getattr(importlib.import_module(module), function), *more)
