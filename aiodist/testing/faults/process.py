"""The driver's end of a rank process, and of the nursery that forks it. Linux."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiodist.net.descriptors import receive
from aiodist.testing.faults.rank import PACKET

_START = 60.0  # seconds for a nursery to import everything and fork its first


class RankProcess:
    """One process that takes orders and faults.

    Args:
        pid: its id.
        pidfd: a descriptor of it, which becomes this object's.
        sock: the socket to it, which becomes this object's, too.
        heard: called with each message; with None once, when the process is gone.

    Attributes:
        gone: whether its end has been heard.
        unresponsive: whether it was sent SIGKILL or SIGSTOP: it obeys no more.
    """

    def __init__(self, pid: int, pidfd: int, sock: socket.socket) -> None:
        self.pid = pid
        self.gone = False
        self.unresponsive = False
        self.heard: Callable[[dict[str, Any] | None], None] = lambda message: None
        self._pidfd = pidfd
        self._sock = sock
        self._sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._readable)

    def order(self, message: Mapping[str, Any]) -> None:
        """Send an order; it is carried out when those before it have been."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end will be heard
            self._sock.send(json.dumps(message).encode())

    @property
    def alive(self) -> bool:
        """Whether it lives, answering or not."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pidfd, selectors.EVENT_READ)
            return not selector.select(0)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens where it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Kill it, wait for its end and let go of the descriptors."""
        if self._pidfd < 0:
            return
        self.signal(signal.SIGKILL)
        self._hang_up()
        with selectors.DefaultSelector() as selector:  # at most a few ms: it is dying
            selector.register(self._pidfd, selectors.EVENT_READ)
            selector.select(10.0)
        os.close(self._pidfd)
        self._pidfd = -1

    def _readable(self) -> None:
        while not self.gone:
            try:
                packet = self._sock.recv(PACKET)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if packet:
                self.heard(json.loads(packet))
            else:
                self._hang_up()
                self.heard(None)

    def _hang_up(self) -> None:
        if not self.gone:
            self.gone = True
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


class Nursery:
    """A starter of rank processes on one host. See `nursery` for how.

    Args:
        prefix: what the nursery's command begins with, to run it on another host.
        env: environment variables of the processes, beyond this process's own.
    """

    def __init__(self, prefix: Sequence[str], env: Mapping[str, str]) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(_START)
        self._log = tempfile.TemporaryFile(prefix="aiodist-faults-")  # noqa: SIM115 - closed by close
        with theirs:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "aiodist.testing.faults.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
                    "PYTHONUNBUFFERED": "1",
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                    **env,
                },
            )

    def spawn(self) -> RankProcess:
        """Start a new process, ready for orders. Blocks for the milliseconds that it takes."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self._sock, [b"fork"], [theirs.fileno()])
            answer, fds = receive(self._sock, 32, 1)
        except OSError as error:
            mine.close()
            raise RuntimeError(
                f"the nursery of rank processes does not answer ({error})\n{self.log()}"
            ) from error
        if not answer:
            mine.close()
            raise RuntimeError(f"the nursery of rank processes has ended\n{self.log()}")
        return RankProcess(int(answer), fds[0], mine)

    def log(self, nbytes: int = 8000) -> str:
        """The end of what the processes printed."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), nbytes, max(0, size - nbytes)).decode(errors="replace")

    def close(self) -> None:
        """End it; whoever it forked dies with it."""
        self._sock.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
