"""A port that is kept for the workers: they get it, and nobody who asks for any port does."""

from __future__ import annotations

import socket

import pytest

from aiodist.launch.nodes.ports import reserve_port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_names_a_reserved_port_may_listen_there(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with reserve_port(host) as kept:
        port = kept.getsockname()[1]
        with socket.create_server((host, port), family=family) as server, socket.socket(family) as client:
            client.connect((host, port))
            server.accept()[0].close()


def test_nobody_else_is_given_a_reserved_port() -> None:
    """Sure would only be as many others as there are ports; these are some."""
    kept = [reserve_port("127.0.0.1") for _ in range(200)]
    others = [socket.create_server(("127.0.0.1", 0)) for _ in range(200)]
    ports = [sock.getsockname()[1] for sock in (*kept, *others)]
    assert len(set(ports)) == len(ports)
    for sock in (*kept, *others):
        sock.close()
