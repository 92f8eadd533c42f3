"""TLS on every TCP connection: all checks pass over it, and who has none, or another's, is told so."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import uvloop

from aiodist.base.environment import Tls, tls
from aiodist.base.errors import AuthenticationError, PeerLost, Tampered
from aiodist.net import admission
from aiodist.net.secure import SecureSocket
from aiodist.net.wire.frame import Frame, Type, pack
from aiodist.rendezvous import FileStore, Store, StoreServer, TcpStore
from aiodist.rendezvous import server as server_module
from aiodist.testing import spmd
from aiodist.testing.conformance_store import check_store
from aiodist.testing.outcome import RankOutcome
from aiodist.testing.ranks import launch
from aiodist.transport import FRAGMENT, Endpoint, Key, SocketEndpoint, stream
from tests.levels import COSTLY, few
from tests.support.channel_pair import Pair, Recorder, turn_until
from tests.support.conformance_channel import check_channel
from tests.support.store_client import socket_of

Certificates = Callable[[str], dict[str, str]]
LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
HOST = "127.0.0.1"


@pytest.fixture
def no_local_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's clients come over TCP, as from another host."""
    monkeypatch.setattr(server_module, "listen_local", lambda host, port: None)


def run(loop: str, main: Awaitable[None]) -> None:
    async def guarded() -> None:
        await main

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(guarded())


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("eager_budget", few([65536, 0], [65536]))
@pytest.mark.parametrize("loop", few(LOOPS, ["uvloop"]))
def test_channels(loop: str, eager_budget: int, ours: Tls) -> None:
    async def make() -> tuple[Endpoint, Endpoint]:
        pair = [
            SocketEndpoint(
                asyncio.get_running_loop(),
                *(rank, "job", b"secret"),
                mode="tcp",
                eager_budget=eager_budget,
                tls=ours,
            )
            for rank in range(2)
        ]
        for endpoint in pair:
            endpoint.introduce({rank: other.card for rank, other in enumerate(pair)})
        return pair[0], pair[1]

    run(loop, check_channel(make, eager_budget=eager_budget))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.usefixtures("no_local_socket")
def test_stores(loop: str, ours: Tls) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(
                await StoreServer.start(HOST, 0, "job", b"secret", tls=ours)
            )

            async def make() -> Store:
                return await TcpStore.connect(HOST, server.port, "job", b"secret", 10, tls=ours)

            await check_store(make)

    run(loop, main())


@pytest.mark.usefixtures("no_local_socket")
async def test_large_values_and_many_requests_at_once(ours: Tls) -> None:
    async with (
        await StoreServer.start(HOST, 0, "job", b"secret", tls=ours) as server,
        await TcpStore.connect(HOST, server.port, "job", b"secret", 10, tls=ours) as store,
    ):
        assert isinstance(socket_of(store), SecureSocket)
        large = os.urandom(3 << 20)
        await store.set("large", large)
        assert await asyncio.gather(*(store.get("large") for _ in range(5))) == [large] * 5
        assert await asyncio.gather(*(store.add("n", 1) for _ in range(500))) == list(range(1, 501))


async def pair_of(one: Tls | None, two: Tls | None) -> list[SocketEndpoint]:
    made = [
        await SocketEndpoint.open(rank=rank, job="job", secret=b"secret", mode="tcp", tls=key)
        for rank, key in enumerate((one, two))
    ]
    for endpoint in made:
        endpoint.observer = Recorder()
        endpoint.introduce({rank: other.card for rank, other in enumerate(made)})
    return made


@pytest.mark.parametrize(
    ("who", "client_says", "server_says"),
    [
        (
            "client alone",
            "the server does not use TLS, this process does",
            "the client uses TLS, this process",
        ),
        (
            "server alone",
            "this process does not use TLS, the server does",
            "the client does not use TLS, this",
        ),
        (
            "another CA",
            "the certificate of the server is not accepted",
            "the client does not accept this process",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["rank", "store"])
@pytest.mark.usefixtures("no_local_socket")
async def test_who_has_none_or_another_s_is_told_on_both_sides(
    kind: str,
    who: str,
    client_says: str,
    server_says: str,
    ours: Tls,
    theirs: Tls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "aiodist")
    client = {"client alone": ours, "server alone": None, "another CA": theirs}[who]
    server = None if who == "client alone" else ours
    if kind == "rank":
        made = await pair_of(client, server)
        with pytest.raises(PeerLost) as lost:
            await made[0].link_control(1)
        said = str(lost.value)
        await turn_until(lambda: bool(caplog.records))
        await asyncio.gather(*(one.aclose() for one in made))
    else:
        async with await StoreServer.start(HOST, 0, "job", b"secret", tls=server) as store:
            with pytest.raises(AuthenticationError) as refused:
                await TcpStore.connect(HOST, store.port, "job", b"secret", 300, tls=client)
            said = str(refused.value)
            await turn_until(lambda: bool(caplog.records))
    assert client_says in said
    [record] = caplog.records
    assert server_says in record.getMessage()
    assert "\n" not in said + record.getMessage()


async def test_the_wrong_secret_inside_tls(ours: Tls) -> None:
    made = [
        await SocketEndpoint.open(rank=rank, job="job", secret=secret, mode="tcp", tls=ours)
        for rank, secret in enumerate((b"one", b"two"))
    ]
    for endpoint in made:
        endpoint.introduce({rank: other.card for rank, other in enumerate(made)})
    with pytest.raises(PeerLost, match="another secret than this process"):
        await made[0].link_control(1)
    await asyncio.gather(*(one.aclose() for one in made))


async def test_someone_in_between_with_another_certificate_of_the_same_ca(
    ours: Tls, certificates: Certificates, tmp_path: Path
) -> None:
    """They hold a certificate that both ends accept, but not the secret: they hand the handshake on."""
    made = await pair_of(ours, ours)
    middle = _second_certificate(certificates("ours"), tmp_path)
    loop = asyncio.get_running_loop()
    heard: list[bytes] = []

    async def pump(source: SecureSocket, target: SecureSocket) -> None:
        while True:
            try:
                data = source.recv(4096)
            except BlockingIOError:
                await asyncio.sleep(0.001)
                continue
            if not data:
                return
            heard.append(data)
            target.send(data)

    async def relay(reader: Any) -> None:
        sock, _ = await loop.sock_accept(reader)
        sock.setblocking(False)
        onward = socket.socket()
        onward.setblocking(False)
        await loop.sock_connect(onward, tuple(made[1].card["tcp"]))
        server, client = (
            SecureSocket(sock, middle, is_server=True),
            SecureSocket(onward, middle, is_server=False),
        )
        for side in (server, client):
            await turn_until(side.shake_hands)
        ways = [asyncio.ensure_future(pump(server, client)), asyncio.ensure_future(pump(client, server))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        server.close()
        client.close()

    with socket.create_server((HOST, 0)) as listener:
        listener.setblocking(False)
        made[0].introduce({1: made[1].card | {"tcp": [HOST, listener.getsockname()[1]]}})
        relaying = asyncio.ensure_future(relay(listener))
        with pytest.raises(PeerLost, match="another secret than this process"):
            await made[0].link_control(1)
        await relaying
    assert heard  # it did sit in between
    await asyncio.gather(*(one.aclose() for one in made))


def _second_certificate(files: dict[str, str], folder: Path) -> Tls:
    ca = Path(files["AIODIST_TLS_CA"])
    script = f"""
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=other \\
        -keyout other.key -out other.csr
    openssl x509 -req -in other.csr -CA {ca} -CAkey {ca.with_name("ca.key")} -days 1 -set_serial 7 \\
        -out other.pem
    chmod 600 other.key
    """
    subprocess.run(["sh", "-ec", script], cwd=folder, check=True, capture_output=True)
    found = tls(
        files | {"AIODIST_TLS_CERT": str(folder / "other.pem"), "AIODIST_TLS_KEY": str(folder / "other.key")}
    )
    assert found is not None
    return found


class Frames:
    """A link's user that counts what it gets."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def received(self, frame: Frame, payload: memoryview) -> None:
        self.sizes.append(frame.nbytes)

    def eager(self, record: memoryview) -> int:
        raise AssertionError("there is no ring")

    def place(self, frame: Frame, at: int) -> memoryview:
        return memoryview(bytearray(frame.nbytes - at))

    def placed(self, frame: Frame, at: int, nbytes: int) -> None:
        self.sizes.append(frame.nbytes)

    def returned(self, message: object) -> None:
        raise AssertionError("nothing is lent over a socket")

    def writable(self) -> None:
        raise AssertionError("it writes nothing")

    def ended(self, goodbye: bool, cause: str | Tampered) -> None:
        raise AssertionError(cause)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_link_that_stops_for_a_turn_goes_on(loop: str, ours: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though all of it was read from the socket, decrypted, and nothing will wake the loop."""
    monkeypatch.setattr(stream, "BURST", 1)
    sizes = [100_000, *[3000] * 20]  # more than its staging buffer holds

    async def main() -> None:
        with (
            socket.create_server((HOST, 0)) as listener,
            socket.create_connection(listener.getsockname()) as a,
        ):
            b, _ = listener.accept()
            a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            a.setblocking(False)
            b.setblocking(False)
            one, two = SecureSocket(a, ours, is_server=False), SecureSocket(b, ours, is_server=True)
            await turn_until(lambda: all([one.shake_hands(), two.shake_hands()]))
            frames = [
                pack(Type.DATA, *Key(1, 2, 3, 4), nbytes=size, total=size) + bytes(size) for size in sizes
            ]
            assert one.send(b"".join(frames)) == sum(map(len, frames))
            user = Frames()
            link = stream.StreamLink(asyncio.get_running_loop(), cast("socket.socket", two))
            link.start(user)
            await turn_until(lambda: len(user.sizes) == len(sizes))
            assert user.sizes == sizes
            link.kill()
            one.close()

    run(loop, main())


async def test_the_bulk_of_a_channel(ours: Tls) -> None:
    made = await pair_of(ours, ours)
    there, back = Pair(made[0], made[1]), Pair(made[1], made[0])
    await asyncio.gather(
        *(
            pair.passes(Key(1, 0, number, 0), 20 * FRAGMENT + number)
            for pair in (there, back)
            for number in range(3)
        )
    )
    await asyncio.gather(*(one.aclose() for one in made))


async def test_a_file_s_store(ours: Tls, tmp_path: Path, no_local_socket: None) -> None:
    one = await FileStore.open(tmp_path / "meet", "job", b"secret", 10, rank=0, tls=ours)
    two = await FileStore.open(tmp_path / "meet", "job", b"secret", 10, rank=1, tls=ours)
    await one.set("k", "v")
    assert await two.get("k") == b"v"
    await two.aclose()
    await one.aclose()


# Whole jobs.

JOB = """
import asyncio, numpy as np, aiodist as dist

async def main():
    async with await dist.init_process_group(timeout=60) as pg:
        total = await pg.all_reduce(np.full(100_000, pg.rank + 1.0))
        assert (total == 3).all()
        print("it works")

dist.run(main())
"""


def job(tmp_path: Path, *environs: dict[str, str]) -> list[RankOutcome]:
    """Two ranks with different environments, over TCP."""
    script = tmp_path / "job.py"
    script.write_text(
        "import json, os\nos.environ.update(json.loads(os.environ['EACH'])[int(os.environ['RANK'])])\n" + JOB
    )
    return asyncio.run(
        launch([str(script)], 2, timeout=120, env={"AIODIST_TRANSPORT": "tcp", "EACH": json.dumps(environs)})
    )


@pytest.mark.slow(COSTLY)
def test_a_job(tmp_path: Path, certificates: Certificates) -> None:
    outcomes = job(tmp_path, certificates("ours"), certificates("ours"))
    assert [(one.code, one.output.strip()) for one in outcomes] == [(0, "it works")] * 2


@pytest.mark.slow(COSTLY)
def test_under_our_launcher(tmp_path: Path, certificates: Certificates) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "2", str(script)]
    environ = os.environ | certificates("ours") | {"AIODIST_TRANSPORT": "tcp"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("it works") == 2, done.stdout + done.stderr
    del environ["AIODIST_TLS_CA"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "AIODIST_TLS_CA not set, though another AIODIST_TLS_* variable is" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow(COSTLY)
def test_all_who_serve_or_open_a_store_say_whether_by_tls() -> None:
    """Nobody in the package forgets it: each such call names `tls`."""
    package = Path(server_module.__file__).parents[1]
    named = re.compile(r"(StoreServer\.start|StoreServer\.start_many|TcpStore\.connect|FileStore\.open)$")
    calls = 0
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            inner = node.args if isinstance(node, ast.Call) and ast.unparse(node.func) == "partial" else []
            if isinstance(node, ast.Call) and named.match(ast.unparse(inner[0] if inner else node.func)):
                calls += 1
                assert "tls" in [word.arg for word in node.keywords], f"{path}:{node.lineno}"
    assert calls > 12


@pytest.mark.slow(COSTLY)
def test_a_job_where_one_has_none(tmp_path: Path, certificates: Certificates) -> None:
    outcomes = job(tmp_path, certificates("ours"), {})
    for one in outcomes:
        assert one.code == 1
        assert "rank 1 on" in one.output and "rank 0 uses TLS, rank 1 on" in one.output


@spmd(world_size=3, transport="tcp")
async def check_sums(pg: Any) -> None:
    for size in (1, 1000, 300_000):
        values = np.arange(size, dtype=np.float64) * (pg.rank + 1)
        assert (await pg.all_reduce(values) == np.arange(size) * 6).all()


@pytest.mark.slow(COSTLY)
def test_collectives(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in certificates("ours").items():
        monkeypatch.setenv(name, value)
    check_sums()


def test_python_has_what_it_takes() -> None:
    import ssl

    assert ssl.HAS_TLSv1_3, f"this Python ({sys.version}) was built without TLS 1.3"


@pytest.mark.parametrize("kind", ["rank", "store"])
@pytest.mark.usefixtures("no_local_socket")
async def test_a_client_hello_one_byte_at_a_time(
    kind: str, ours: Tls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The time is for all of it; who speaks better gets in meanwhile."""
    monkeypatch.setattr(admission, "PATIENCE", 0.2)
    caplog.set_level(logging.WARNING, "aiodist")
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        if kind == "rank":
            made = await pair_of(ours, ours)
            for one in made:
                stack.push_async_callback(one.aclose)
            address = tuple(made[1].card["tcp"])
        else:
            server = await stack.enter_async_context(
                await StoreServer.start(HOST, 0, "job", b"secret", tls=ours)
            )
            address = (HOST, server.port)
        with socket.socket() as slow:
            slow.setblocking(False)
            await loop.sock_connect(slow, address)
            ended = asyncio.ensure_future(loop.sock_recv(slow, 100))
            hello = b"\x16\x03\x01\x02\x00" + bytes(512)
            with contextlib.suppress(ConnectionError):  # closed while we were still talking
                for number in range(len(hello)):
                    if ended.done():
                        break
                    await loop.sock_sendall(slow, hello[number : number + 1])
                    await asyncio.sleep(0.002)
            with contextlib.suppress(ConnectionError):
                assert (await ended)[:1] in (b"", b"\x15")  # nothing, or an alert
        monkeypatch.undo()
        if kind == "store":
            async with await TcpStore.connect(HOST, server.port, "job", b"secret", 10, tls=ours) as store:
                assert await store.add("n", 1) == 1
        else:
            await Pair(made[0], made[1]).passes(Key(1, 0, 0, 0), 1000)
        await turn_until(lambda: bool(caplog.records))
