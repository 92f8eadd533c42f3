"""Where the launcher listens: on the address that its name means, not on all because that is loopback."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from aiodist.launch.nodes import ports
from aiodist.launch.nodes.ports import about_port, bind_address
from tests.launch.jobs import Start, start
from tests.levels import COSTLY
from tests.processes import sockets_of

__all__ = ["start"]
OURS = ("127.0.0.1", "127.0.1.1", "::1", "10.0.0.5", "0.0.0.0")


@pytest.fixture
def means(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Say which addresses a name has."""
    monkeypatch.setattr(ports, "_is_ours", lambda _family, host: host in OURS)

    def say(*addresses: str) -> None:
        found = [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))
            for address in addresses
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: found)

    return say


@pytest.mark.parametrize(
    ("addresses", "local", "bound"),
    [
        (["127.0.1.1"], None, "127.0.1.1"),
        (["::1"], None, "::1"),
        (["127.0.1.1", "10.0.0.5"], None, "10.0.0.5"),
        (["10.0.0.9", "10.0.0.5"], None, "10.0.0.5"),
        (["127.0.1.1"], "10.0.0.7", "10.0.0.7"),
        (["10.0.0.5"], "10.0.0.7", "10.0.0.5"),
        (["10.0.0.9"], None, None),
        (["10.0.0.9"], "10.0.0.5", None),
        (["0.0.0.0"], None, "0.0.0.0"),
    ],
)
def test_bound_is_what_the_name_means(
    means: Any, addresses: list[str], local: str | None, bound: str | None
) -> None:
    means(*addresses)
    assert bind_address("node-a", local) == bound


def test_operator_is_told() -> None:
    assert about_port("10.0.0.5", "node-a") == about_port("127.0.0.1", "localhost") == ""
    assert about_port("0.0.0.0", "0.0.0.0") == about_port("::", "::") == ""
    assert re.search(r"^listening on 127.0.1.1, .*--local-addr", about_port("127.0.1.1", "node-a"))
    assert re.search(r"^listening on all addresses .*--local-addr", about_port("0.0.0.0", "service"))


PATCHED = """
import socket, sys
real = socket.getaddrinfo
def resolve(host, *rest, **more):
    return real("127.0.1.1" if host in ("node-a.test", b"node-a.test") else host, *rest, **more)
socket.getaddrinfo = resolve
from aiodist.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
MEET = """
import asyncio
from aiodist.rendezvous.client import TcpStore
async def main():
    host, _, port = os.environ["AIODIST_STORE"].rpartition(":")
    job, secret = os.environ["AIODIST_JOB"], os.environ["AIODIST_SECRET"].encode()
    async with await TcpStore.connect(host, int(port), job, secret, 60) as store:
        await store.set(str(RANK), b"")
        await store.wait(["0", "1"], 60)
        print("met at", host)
asyncio.run(main())
"""


def listening(pid: int) -> set[str]:
    """The addresses on which a process listens, as /proc has them."""
    held = sockets_of(pid)
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[9]) in held:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.mark.slow(COSTLY)
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_name_that_is_the_loopbacks_opens_no_other_door(start: Start, port: int) -> None:
    """Node 0 by a name like Debian's of itself; another node of this host comes in by the address."""
    env = {"AIODIST_SECRET": "of both of these two nodes"}
    meet = ["--nnodes", "2", "--master-port", str(port)]
    head = start(
        MEET, *meet, "--node-rank", "0", "--master-addr", "node-a.test", env=env, nproc=1, program=PATCHED
    )
    line = head.until_said("listening on ")
    assert line.startswith("aiodist run: listening on 127.0.1.1, which is what node-a.test means here: ")
    assert listening(head.process.pid) == {"0101007F"}
    guest = start(MEET, *meet, "--node-rank", "1", "--master-addr", "127.0.1.1", env=env, nproc=1)
    for job in (guest, head):
        code, out, err = job.end()
        assert code == 0, err
        assert "met at 127.0.1.1" in out
