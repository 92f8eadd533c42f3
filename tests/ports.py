"""Ports for servers that tests start. Below those that the kernel gives out by itself, so that nobody takes
one between the look and its use, and none of them twice."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest

HOST = "127.0.0.1"


def _free_ports() -> Iterator[int]:
    for port in random.sample(range(20_000, 29_000), 9_000):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        yield port


_PORTS = _free_ports()


def free_port() -> int:
    """A port of the loopback that is free."""
    return next(_PORTS)


def needs_ipv6() -> None:
    """Skip the running test where this machine has no IPv6 loopback."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
