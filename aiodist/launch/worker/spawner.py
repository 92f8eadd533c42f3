"""The process that guardians are forked from, as it was before the agent had threads, a loop and descriptors.

So forking is safe, whatever the agent does, and nothing is handed on that workers should not have. It ends
when the agent is gone and its guardians have ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import NoReturn

from aiodist.base.errors import UsageError
from aiodist.launch.worker.descendants import wake_with_parents_end
from aiodist.launch.worker.guardian import Guardian, Order
from aiodist.net.descriptors import receive_message, send_message
from aiodist.net.shortage import shortage

_ANSWER = 60.0  # seconds for a worker to be started
_LAST = 5.0  # seconds for the guardians to end what no worker's `sweep` has waited for
# They are for the agent, or for workers.
_NOT_OURS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class Spawner:
    """The agent's handle on it. `start` must precede threads and the event loop."""

    def __init__(self, pid: int, requests: socket.socket) -> None:
        self.pid = pid
        self._requests = requests

    @classmethod
    def start(cls) -> Spawner:
        """Fork the spawner."""
        ours, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _end_after(lambda: _serve(theirs.detach()))
        theirs.close()
        ours.settimeout(_ANSWER)
        return cls(pid, ours)

    def spawn(self, order: Order, stdin: int, out: int, err: int) -> socket.socket:
        """Have a worker started under a guardian of its own; `answer` says whether it was.

        Args:
            order: what to start.
            stdin: a descriptor to read from; it stays the caller's, as the other two.
            out: for what it writes to stdout.
            err: likewise to stderr.

        Returns:
            The control socket to its guardian; see `guardian`. Closing it ends the worker, with all that it
            has started.

        Raises:
            UsageError: the spawner is gone.
            OSError: this process lacks descriptors, say.
        """
        request = json.dumps(asdict(order)).encode()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                send_message(self._requests, request, [theirs.fileno(), stdin, out, err])
            except OSError as error:
                ours.close()
                if shortage(error) is not None:
                    raise
                raise _lost(error) from None
        return ours

    def wake(self) -> None:
        """Have it and all guardians go on, if they are stopped (SIGSTOP): who is does not end anybody."""
        with suppress(OSError):  # they have ended
            os.killpg(self.pid, signal.SIGCONT)  # guardians stay in its group

    def close(self) -> None:
        """End it; returns when it and all guardians have ended, or after some seconds."""
        self._requests.close()
        self.wake()
        until = time.monotonic() + _LAST
        with suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0 and time.monotonic() < until:
                time.sleep(0.002)


def answer(control: socket.socket, command: str) -> int:
    """Wait until a worker runs → its pid; the socket does not block from here on.

    Raises:
        UsageError: it cannot be run.
    """
    control.settimeout(_ANSWER)
    line = b""
    try:
        while not line.endswith(b"\n"):  # and not a byte of what comes behind
            byte = control.recv(1)
            if not byte:
                raise ConnectionResetError("it was killed")
            line += byte
    except OSError as error:
        raise _lost(error) from None
    control.setblocking(False)
    told = json.loads(line)
    if "error" in told:
        raise UsageError(f"cannot run {command!r}: {told['error']}")
    return int(told["pid"])


def _lost(error: OSError) -> UsageError:
    why = error.strerror or error
    return UsageError(f"no worker can be started: the process that starts them is gone ({why})")


def _end_after(work: Callable[[], None]) -> NoReturn:
    """Do it, and end this process, which is a fork of another: nothing of that one's is to be cleaned up."""
    try:
        work()
    finally:
        os._exit(0)


def _serve(fd: int) -> None:
    """The spawner's whole life."""
    os.setsid()  # a signal to the agent's process group, or its terminal, is not for us
    wake_with_parents_end()
    for signum in _NOT_OURS:
        if signal.getsignal(signum) is not signal.SIG_IGN:  # workers shall ignore it as the agent does
            signal.signal(signum, lambda *_: None)  # while this is not handed on to them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries guardians
    fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)  # an agent without stdin has it in that one's place
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    kept = os.dup2(fd, 3, inheritable=False) if fd != 3 else 3
    os.closerange(4, 1 << 16)
    requests = socket.socket(fileno=kept)
    while (request := receive_message(requests, 4)) is not None:
        order, fds = request
        _fork(requests, Order(**json.loads(order)), fds)
    os.killpg(0, signal.SIGCONT)  # guardians that are stopped would not see that the agent is gone
    with suppress(ChildProcessError):
        os.waitpid(-1, 0)  # returns when there is none left, since they are ignored


def _fork(requests: socket.socket, order: Order, fds: Sequence[int]) -> None:
    control, *streams = fds
    agent = socket.socket(fileno=control)
    with agent:
        try:
            pid = os.fork()
        except OSError as error:
            agent.sendall(json.dumps({"error": error.strerror}).encode() + b"\n")
        else:
            if pid == 0:
                requests.close()
                _end_after(lambda: Guardian(agent, order).run(streams[0], streams[1], streams[2]))
    for fd in streams:
        os.close(fd)
