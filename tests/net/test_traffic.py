"""What the kernel counts on a connection is read as it is."""

from __future__ import annotations

import socket
import sys

import pytest

from aiodist.net.traffic import traffic_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO as Linux has it")


def test_bytes_that_were_acknowledged_are_counted() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            before = traffic_of(one)
            assert before is not None
            one.sendall(bytes(100_000))
            taken = 0
            while taken < 100_000:
                taken += len(other.recv(1 << 20))
            after = traffic_of(one)
            assert after is not None
            assert after.sent - before.sent >= 50_000  # the last acknowledgement may be on its way
            assert after.sent - before.sent <= 100_001
            assert after.rtt > 0.0
            assert after.again == 0
            assert after.rate > 0.0
    assert traffic_of(one) is None


def test_what_is_no_tcp_has_none() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert traffic_of(one) is None
