"""A clock that tests put forward; and a real etcd: processes on free ports, with folders of their own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aiodist.net import local_socket
from aiodist.rendezvous import client
from aiodist.rendezvous.etcd.gateway import Gateway
from aiodist.rendezvous.etcd.place import place
from tests.ports import free_port

HOST = "127.0.0.1"
# A test that ran out of time takes pytest along, and nobody is left to stop what it started.
END_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()


class Clock:
    """The loop's clock, for tests that must not depend on how fast the machine is."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._ahead = 0.0

    def time(self) -> float:
        return self._time() + self._ahead

    def forward(self, seconds: float) -> None:
        """Put it forward: timers that are due by then fire in the loop's next turn."""
        self._ahead += seconds


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of this test's loop."""
    loop = asyncio.get_running_loop()
    clock = Clock(loop.time)
    monkeypatch.setattr(loop, "time", clock.time)
    return clock


@pytest.fixture
def run_out_of_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once called, the time to reach a store is over when the network has answered an attempt to connect."""

    async def connect(host: str, port: int) -> tuple[socket.socket, str]:
        try:
            return await local_socket.connect_to_store(host, port)
        finally:
            clock.forward(1e4)

    return lambda: monkeypatch.setattr(client, "connect_to_store", connect)


class Etcd:
    """An etcd of several members. What they hold outlasts their processes.

    Args:
        folder: for their data and logs.
        size: members.
        options: for the command line of each.
        scheme: 'https' where the options make them speak TLS.
    """

    def __init__(
        self, folder: Path, size: int = 1, options: tuple[str, ...] = (), scheme: str = "http"
    ) -> None:
        self._folder = folder
        self._options = options
        self._scheme = scheme
        self.ports = [free_port() for _ in range(size)]
        self._peers = [f"http://{HOST}:{port}" for port in (free_port() for _ in range(size))]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for member in range(size):
            self.start(member)

    @property
    def url(self) -> str:
        """For `init_method`."""
        scheme = "etcds" if self._scheme == "https" else "etcd"
        return f"{scheme}://{','.join(f'{HOST}:{port}' for port in self.ports)}"

    def start(self, member: int = 0) -> None:
        """Start a member; it may take a moment until it answers."""
        cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(self._peers))
        client = f"{self._scheme}://{HOST}:{self.ports[member]}"
        with open(self._folder / f"m{member}.log", "ab") as log:
            self._processes[member] = subprocess.Popen(
                [
                    *END_WITH_PARENT,
                    *("etcd", "--name", f"m{member}", "--data-dir", str(self._folder / f"m{member}")),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", self._peers[member]),
                    *("--initial-advertise-peer-urls", self._peers[member]),
                    *("--initial-cluster", cluster, "--logger", "zap", *self._options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, member: int = 0) -> None:
        """End a member as a crash does."""
        process = self._processes.pop(member)
        process.kill()
        process.wait()

    def freeze(self, member: int = 0) -> None:
        """Stop a member as if its host were: it answers nobody, and its connections stay."""
        self._processes[member].send_signal(signal.SIGSTOP)

    def thaw(self, member: int = 0) -> None:
        """Let a frozen member go on, with all that has been sent to it meanwhile."""
        self._processes[member].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End all members."""
        for member in list(self._processes):
            self.kill(member)

    async def ask(self, path: str, body: dict[str, Any], member: int | None = None) -> dict[str, Any]:
        """Ask etcd itself, or one member, as soon as it answers."""
        url = self.url if member is None else f"etcd://{HOST}:{self.ports[member]}"
        gateway = Gateway(place(url, {}))
        try:
            deadline = asyncio.get_running_loop().time() + 60
            answer, _ = await gateway.call(path, body, deadline)
            return answer
        finally:
            await gateway.aclose()

    async def leader(self) -> int:
        """The member that leads."""
        answers = [await self.ask("/v3/maintenance/status", {}, member) for member in range(len(self.ports))]
        [leader] = [
            member
            for member, answer in enumerate(answers)
            if answer.get("leader") == answer["header"]["member_id"]
        ]
        return leader


class Wire:
    """A proxy in front of etcd that loses what it is told to lose.

    Attributes:
        is_cut: refuse connections, and end those that there are.
        to_lose: so many answers to transactions never arrive; their connection ends instead.
        to_drop: so many transactions never arrive, likewise.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_cut = False
        self.to_lose = 0
        self.to_drop = 0
        self.port = 0

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.is_cut:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection(HOST, self._port)
        except OSError:  # etcd is not up yet, or no more: the client sees that as it would without a proxy
            writer.transport.abort()
            return
        writers = {writer, there[1]}
        self._writers |= writers
        asks = [b""]

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    if not answers and (request := re.match(rb"POST (\S+)", data)):
                        asks[0] = request[1]
                        if asks[0] == b"/v3/kv/txn" and self.to_drop > 0:
                            self.to_drop -= 1
                            break
                    if answers and asks[0] == b"/v3/kv/txn" and self.to_lose > 0:
                        self.to_lose -= 1
                        break
                    sink.write(data)
            for each in writers:
                each.transport.abort()

        await asyncio.gather(pump(reader, there[1], answers=False), pump(there[0], writer, answers=True))
        self._writers -= writers


@pytest.fixture(scope="session")
def needs_etcd() -> None:
    """Skip where there is no etcd, or nothing to speak to it with."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian: apt-get install etcd-server)")
    if importlib.util.find_spec("aiohttp") is None:
        pytest.skip("aiohttp is not installed (pip install 'aiodist[etcd]')")


@pytest.fixture(scope="session")
def etcd(needs_etcd: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One etcd of one member for all tests that leave it as it is; each has a job of its own in it."""
    server = Etcd(tmp_path_factory.mktemp("etcd"))
    yield server
    server.stop()


@pytest.fixture
def start_etcd(needs_etcd: None, tmp_path: Path) -> Iterator[Callable[..., Etcd]]:
    """Starts an etcd for this test alone."""
    with contextlib.ExitStack() as stack:

        def start(**arguments: Any) -> Etcd:
            server = Etcd(tmp_path, **arguments)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def wire() -> Callable[[int], Wire]:
    """Makes a proxy in front of a port."""
    return Wire
