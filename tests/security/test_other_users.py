"""A second user of the host, where the job has no secret: over loopback it neither joins nor is believed."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgpack
import pytest

from aiodist.base.errors import AuthenticationError, PeerLost
from aiodist.net import local_socket
from aiodist.rendezvous import StoreServer, TcpStore
from aiodist.transport import SocketEndpoint
from tests.support.channel_pair import turn_until

HOST = "127.0.0.1"
NOBODY = 65534

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel says who it is on Linux only"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which needs root"),
]

BECOME = f"import os\nos.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"

JOIN = (
    """
import asyncio
from aiodist.rendezvous import TcpStore
"""
    + BECOME
    + """
async def main():
    async with await TcpStore.connect("127.0.0.1", int(os.environ["PORT"]), "job", b"", 10) as store:
        await store.set("injected", b"by another user")
        print("in")
asyncio.run(main())
"""
)

SERVE = (
    """
import asyncio, sys
from aiodist.rendezvous import StoreServer
"""
    + BECOME
    + """
async def main():
    async with await StoreServer.start("127.0.0.1", 0, "job", b"") as server:
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""
)

RANK = (
    """
import asyncio, sys
import msgpack
from aiodist.transport import SocketEndpoint
"""
    + BECOME
    + """
async def main():
    endpoint = await SocketEndpoint.open(rank=1, job="job", secret=b"", mode="tcp")
    theirs = msgpack.unpackb(bytes.fromhex(sys.stdin.readline()))
    print(msgpack.packb(endpoint.card).hex(), flush=True)
    endpoint.introduce({0: theirs, 1: endpoint.card})
    endpoint.on_control = lambda rank, link: print("taken", rank, flush=True)
    try:
        await endpoint.link_control(0)
        print("in", flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await endpoint.aclose()
asyncio.run(main())
"""
)


@asynccontextmanager
async def other_user(code: str, **environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of nobody."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        yield child
    finally:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.close()
        await child.stdout.read()
        await child.wait()


async def said(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    return (await child.stdout.readline()).decode()


async def test_it_does_not_join_at_the_store(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        local_socket, "_connect_local", lambda host, port: None
    )  # this test's own way is TCP, too
    caplog.set_level(logging.WARNING, "aiodist")
    async with (
        await StoreServer.start(HOST, 0, "job", b"") as server,
        await TcpStore.connect(HOST, server.port, "job", b"", 20) as store,
    ):
        async with other_user(JOIN, PORT=str(server.port)) as child:
            assert child.stdout is not None
            output = (await child.stdout.read()).decode()
        assert 'AuthenticationError: the peer says: "this process runs under another user' in output
        assert await store.check(["injected"]) is False
    assert "it runs under another user, and this job has no secret" in caplog.text


async def test_its_store_is_not_believed() -> None:
    """It has taken the port before rank 0 did."""
    async with other_user(SERVE) as child:
        port = int(await said(child))
        with pytest.raises(AuthenticationError, match="another user, and this job has no secret"):
            await TcpStore.connect(HOST, port, "job", b"", 20)


async def test_it_is_no_rank(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "aiodist")
    mine = await SocketEndpoint.open(rank=0, job="job", secret=b"", mode="tcp")
    taken: list[int] = []
    mine.on_control = lambda rank, link: (taken.append(rank), link.kill())[0]  # type: ignore[func-returns-value]
    async with other_user(RANK) as child:
        assert child.stdin is not None
        child.stdin.write(msgpack.packb(mine.card).hex().encode() + b"\n")
        theirs = msgpack.unpackb(bytes.fromhex(await said(child)))
        mine.introduce({0: mine.card, 1: theirs})
        assert (await said(child)).startswith("PeerLost")
        await turn_until(lambda: "it runs under another user, and this job has no secret" in caplog.text)
        with pytest.raises(PeerLost, match="cannot connect to it"):
            await mine.link_control(1)
    assert taken == []
    await mine.aclose()


async def test_with_a_secret_users_do_not_matter() -> None:
    """Who knows it is of the job, as between hosts."""
    async with (
        await StoreServer.start(HOST, 0, "job", b"s" * 32) as server,
        other_user(JOIN.replace('b""', 'b"s" * 32'), PORT=str(server.port)) as child,
    ):
        assert await said(child) == "in\n"


async def test_an_impostor_that_serves_everybody_is_not_believed() -> None:
    """A store of another user that asks nobody who it is."""
    async with other_user(SERVE, AIODIST_ALLOW_INSECURE="1") as child:
        port = int(await said(child))
        with pytest.raises(
            AuthenticationError, match=r"another process answers as the store .* another user"
        ):
            await TcpStore.connect(HOST, port, "job", b"", 20)
