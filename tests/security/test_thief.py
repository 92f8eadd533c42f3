"""Names on this host are free once their process has died. Who takes one gets nothing, and no descriptor."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aiodist.base.errors import PeerLost
from aiodist.net import descriptors
from aiodist.transport import Key, SocketEndpoint
from aiodist.transport.shm.arena import available
from tests.support.channel_pair import Recorder

pytestmark = pytest.mark.skipif(not available(), reason="needs memfd (Linux)")

# Takes names, as the user that it is told, and tells what comes: bytes, and descriptors beside them.
THIEF = """
import array, os, select, socket, sys
user, names = int(sys.argv[1]), sys.argv[2:]
os.setgid(user) if user else None
os.setuid(user) if user else None
listeners = []
for name in names:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        sock = socket.socket(socket.AF_UNIX, kind)
        sock.bind(b"\\0" + bytes.fromhex(name))
        if kind == socket.SOCK_STREAM:
            sock.listen()
        listeners.append(sock)
print("ready", flush=True)
open_ = list(listeners) + [sys.stdin]
heard = fds = 0
while True:
    for sock in select.select(open_, [], [])[0]:
        if sock is sys.stdin:
            print(heard, fds, flush=True)
            sys.exit()
        if sock in listeners and sock.type == socket.SOCK_STREAM:
            open_.append(sock.accept()[0])
            continue
        data, ancillary, _, _ = sock.recvmsg(1 << 16, 1 << 12)
        heard += len(data)
        fds += sum(len(payload) // 4 for _, _, payload in ancillary)
        if not data and sock not in listeners:
            open_.remove(sock)
"""


@asynccontextmanager
async def thief(user: int, *names: bytes) -> AsyncIterator[Callable[[], Any]]:
    """Somebody who has taken names; → what it has heard, in bytes, and how many descriptors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", THIEF, str(user), *(name.hex() for name in names)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"

    async def loot() -> list[int]:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        return [int(word) for word in (await process.stdout.readline()).split()]

    try:
        yield loot
    finally:
        process.stdin.close()
        await process.wait()


ANOTHER = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.mark.parametrize(
    "user", [pytest.param(0, id="the same user"), pytest.param(65534, id="another user", marks=ANOTHER)]
)
@pytest.mark.parametrize("secret", [b"secret", b""], ids=["a secret", "no secret"])
@pytest.mark.parametrize("rank", [0, 1])
async def test_who_takes_the_name_of_the_dead(user: int, secret: bytes, rank: int) -> None:
    """Rank `rank` dies when all have its card, and the others go on to show each other their memory."""
    made = [await SocketEndpoint.open(rank=r, job="job", secret=secret, mode="shm") for r in range(2)]
    for one in made:
        one.observer = Recorder()
        one.introduce({r: other.card for r, other in enumerate(made)})
    dead, mine = made[rank], made[1 - rank]
    dead.kill()
    async with thief(user, dead.card["mail"], dead.card["unix"]) as loot:
        assert await mine.prove_local([rank], [rank], 0.3) == set()
        with pytest.raises((PeerLost, TimeoutError)):
            await asyncio.wait_for(mine.link_control(rank), 0.3)
        mine.outgoing(rank).send(Key(1, 0, 0, 0), bytes(32), memoryview(bytes(100)), lambda: None)
        await asyncio.sleep(0)
        heard, fds = await loot()
    assert fds == 0
    if user:
        assert heard == 0
    mine.kill()


async def test_descriptors_are_not_for_children() -> None:
    """What comes over a socket is closed in programs that are started meanwhile, from the first moment on."""
    mine, theirs = socket.socketpair()
    with mine, theirs, open(os.devnull) as file:
        socket.send_fds(theirs, [b"three"], [file.fileno()] * 3)
        data, fds = descriptors.receive(mine, 100, 3)
        assert data == b"three" and len(fds) == 3
        assert not any(map(os.get_inheritable, fds))
        for fd in fds:
            os.close(fd)


async def test_descriptors_are_received_in_one_place() -> None:
    """`socket.recv_fds` leaves the flag out that makes it so."""
    package = Path(descriptors.__file__).parents[1]
    for path in package.rglob("*.py"):
        words = path.read_text()
        if path != Path(descriptors.__file__):
            assert "recv_fds(" not in words and ".recvmsg(" not in words, path
