"""Names and addresses: what is resolved, and what cannot be."""

from __future__ import annotations

import ctypes
import os
import socket
import sys

import pytest

from aiodist.base.errors import RendezvousError
from aiodist.cli.doctor.network import examine
from aiodist.launch.nodes.ports import bind_address
from aiodist.net.sockets import is_in_use, listen, port_owner, resolve, towards_most
from aiodist.transport.endpoint import SocketEndpoint

IMPOSSIBLE = ["node..cluster", "n" * 70, "knöten..cluster", "ö" * 70]
"""No host's names: a label is empty, or too long."""


@pytest.mark.parametrize("name", IMPOSSIBLE, ids=["empty", "long", "umlaut", "long-umlauts"])
async def test_names_that_no_host_can_have(name: str) -> None:
    with pytest.raises(socket.gaierror):
        await resolve(name, 80)
    with pytest.raises(RendezvousError, match=f"cannot listen on '{name}': "):
        await listen(name, 0)
    with pytest.raises(RendezvousError):
        await SocketEndpoint.open(rank=0, job="j", secret=b"s", host=name)
    assert bind_address(name) is None
    found = examine(name, name)
    assert found["unusable"] and found["unreachable"]


async def test_whose_fault_it_is_that_nobody_listens() -> None:
    with await listen("127.0.0.1", 0) as taken:
        with pytest.raises(RendezvousError, match="in use") as caught:
            await listen("127.0.0.1", taken.getsockname()[1])
        assert is_in_use(caught.value)
    with pytest.raises(RendezvousError, match="not an address of this host") as caught:
        await listen("192.0.2.1", 0)
    assert not is_in_use(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says it on Linux only")
@pytest.mark.parametrize(
    ("name", "shown"),
    [(b"\xff\xfe", "\ufffd\ufffd"), (b"\x1b[2Jx", "[2Jx"), (b"x\r\nroot: OK", "x  root: OK")],
    ids=["no-utf8", "orders", "lines"],
)
async def test_whoever_has_a_port_gives_a_terminal_no_orders(name: bytes, shown: str) -> None:
    """The name of a process may be any bytes."""
    prctl = ctypes.CDLL(None).prctl
    before = ctypes.create_string_buffer(16)
    prctl(16, before)
    try:
        with await listen("127.0.0.1", 0) as taken:
            prctl(15, name)
            assert port_owner(taken.getsockname()[1]) == f"pid {os.getpid()} ({shown})"
    finally:
        prctl(15, before)


def test_the_address_towards_hosts_is_none_of_the_loopback_unless_all_are() -> None:
    assert towards_most([]) == towards_most(["node..cluster", "nobody.invalid"]) == ""
    assert towards_most(["127.0.0.1", "localhost"]) == "127.0.0.1"
