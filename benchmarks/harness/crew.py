"""A crew: the rank processes of one peer, started once and kept, which measure when they are told to."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.link import AbsentError, pack, receive
from benchmarks.harness.peers import Peer, environment, rank_program

_START = 60.0  # seconds for all ranks to report
_ORDER = 180.0  # seconds for one order
_ORDER_OF_EACH = 1.5  # more, for each rank, where there are many
_START_OF_EACH = 2.0
_END = 5.0


class CrewError(Exception):
    """The error that a rank failed, ended or gave no answer; says which, and how."""


class Crew:
    """The ranks, started; use it with `with`, or `close` it.

    Args:
        peer: whose.
        size: number of ranks.
        forked: they are forks of one process that has imported everything: quicker where there are many.
        enter: the words that a rank's command begins with, by rank: those that bring it to its host.
        launch: the command that starts all ranks, from that of one; None: the peer's own launcher, if any.

    Attributes:
        versions: what rank 0 says about its software.
    """

    def __init__(
        self,
        peer: Peer,
        size: int,
        *,
        forked: bool = False,
        enter: Callable[[int], list[str]] = lambda rank: [],
        launch: Callable[[list[str]], list[str]] | None = None,
    ) -> None:
        self.peer = peer
        self._enter = enter
        self._launch = launch
        self._forked = forked
        self._patience = max(_ORDER, _ORDER_OF_EACH * size)
        self.size = size
        self.versions: dict[str, str] = {}
        self._socks: dict[int, socket.socket] = {}
        self._pidfds: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="benchmarks-")
        self._log = Path(self._folder.name) / "log"
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, do: str, ranks: Sequence[int] | None = None, **arguments: Any) -> list[Any]:
        """Order all ranks, or some, to do something; their results in rank order.

        Raises:
            AbsentError: the peer cannot.
            CrewError: something went wrong; the crew is of no further use.
        """
        wanted = range(self.size) if ranks is None else ranks
        message = pack({"do": do, **arguments})
        for rank in wanted:
            try:
                self._socks[rank].sendall(message)
            except OSError:
                raise self._failure(rank, f"had ended before {do!r}") from None
        answers = self._collect(wanted, do)
        for rank in wanted:
            if "absent" in answers[rank]:
                raise AbsentError(answers[rank]["absent"])
        return [answers[rank]["result"] for rank in wanted]

    def do(self, function: Callable[..., Awaitable[Any]], /, **arguments: Any) -> list[Any]:
        """Have all ranks run a function of a module: `await function(peer, **arguments)`.

        Arguments and results travel as JSON; errors as with `call`.
        """
        name = f"{function.__module__}:{function.__name__}"
        return self.call("do", function=name, arguments=arguments)

    def _collect(self, wanted: Sequence[int], do: str) -> dict[int, dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        until = time.monotonic() + self._patience
        with selectors.DefaultSelector() as selector:
            for rank in wanted:
                selector.register(self._socks[rank], selectors.EVENT_READ, rank)
            while len(answers) < len(wanted):
                events = selector.select(max(0.0, until - time.monotonic()))
                if not events:
                    late = next(rank for rank in wanted if rank not in answers)
                    raise self._failure(late, f"gave no answer to {do!r} within {self._patience:g} s")
                for key, _ in events:
                    rank = key.data
                    try:
                        answers[rank] = receive(self._socks[rank])
                    except (EOFError, OSError):
                        raise self._failure(rank, f"ended during {do!r}") from None
                    selector.unregister(self._socks[rank])
                    if "error" in answers[rank]:
                        error = answers[rank]["error"].strip()
                        raise self._failure(rank, f"failed in {do!r}: {error.splitlines()[-1]}\n{error}")
        return answers

    def close(self) -> None:
        """End the ranks: ask them, then kill what is left."""
        self.dismiss()
        until = time.monotonic() + (_END if len(self._socks) == self.size else 0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in self._processes:
                process.wait(max(0.0, until - time.monotonic()))
        for pidfd in self._pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for sock in self._socks.values():
            sock.close()  # a rank that was missed sees it, and ends
        self._socks, self._pidfds, self._processes = {}, [], []
        self._folder.cleanup()

    def dismiss(self) -> None:
        """Ask the ranks to end, and do not wait for it."""
        for sock in self._socks.values():
            with contextlib.suppress(OSError):
                sock.sendall(pack({"do": "end"}))

    def _start(self) -> None:
        path = str(Path(self._folder.name) / "socket")
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("wb") as log:
            listener.bind(path)
            listener.listen(self.size)
            programs = [
                [*self._enter(rank), *rank_program(self.peer, path, rank, self.size)]
                for rank in range(self.size)
            ]
            if self._forked:
                programs = [rank_program(self.peer, path, None, self.size)]
            elif self._launch is not None:
                programs = [self._launch(rank_program(self.peer, path, 0, self.size))]
            elif self.peer.launcher is not None:
                programs = [self.peer.command(programs[0], self.size)]
            for program in programs:
                self._processes.append(
                    subprocess.Popen(
                        program,
                        env=environment(self.peer),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,  # a Ctrl-C is for the driver, which ends them in order
                    )
                )
            self._await_ranks(listener)

    def _await_ranks(self, listener: socket.socket) -> None:
        until = time.monotonic() + max(_START, _START_OF_EACH * self.size)
        listener.settimeout(0.2)
        while len(self._socks) < self.size:
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                ended = [process for process in self._processes if process.poll() is not None]
                if ended or time.monotonic() > until:
                    why = f"exited with {ended[0].returncode}" if ended else "did not report in time"
                    raise CrewError(f"{self.peer.name}: a rank {why}{self._words()}") from None
                continue
            sock.settimeout(_START)
            try:
                hello = receive(sock)
            except (EOFError, OSError):
                sock.close()
                continue  # its process has ended, which the next look shows
            sock.settimeout(None)
            self._pidfds.append(os.pidfd_open(hello["pid"]))
            self._socks[hello["rank"]] = sock
            if hello["size"] != self.size:
                raise CrewError(f"{self.peer.name}: its launcher and mpi4py do not belong together")
            if hello["rank"] == 0:
                self.versions = hello["versions"]

    def _failure(self, rank: int, what: str) -> CrewError:
        return CrewError(f"{self.peer.name}: rank {rank} of {self.size} {what}{self._words()}")

    def _words(self) -> str:
        """The end of what the ranks printed."""
        with contextlib.suppress(OSError):
            lines = self._log.read_text(errors="replace").strip().splitlines()[-12:]
            return "".join(f"\n  {line}" for line in lines)
        return ""


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
