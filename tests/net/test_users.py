"""The user of a connection's other end, as the kernel says, and by its table of sockets."""

from __future__ import annotations

import errno
import os
import socket
import sys

import pytest

from aiodist.net import sock_diag, users
from aiodist.net.users import find_owner, why_not

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net/tcp")

V4 = (
    "   1: 0100007F:944D 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 10539728 1 0 100",
    "   2: 0100007F:944D 0100007F:A001 01 00000000:00000000 00:00000000 00000000  1000 0 10539729 1 0 20",
    "   3: 0100007F:A001 0100007F:944D 01 00000000:00000000 00:00000000 00000000  1001 0 10539730 1 0 20",
    "   4: 0100007F:A002 0100007F:944D 06 00000000:00000000 00:00000000 00000000     0 0 0 3 0",
)
V6 = (
    "0: 0000000000000000FFFF00000100007F:A003 0000000000000000FFFF00000100007F:944D 01 0:0 0:0 0 1003 0 77",
    "1: 00000000000000000000000001000000:A004 00000000000000000000000001000000:944D 01 0:0 0:0 0 1004 0 78",
)
SERVER = ("127.0.0.1", 0x944D)


@pytest.mark.skipif(sys.byteorder != "little", reason="the lines were taken where it is little")
@pytest.mark.parametrize(
    ("lines", "address", "remote", "user"),
    [
        (V4, ("127.0.0.1", 0xA001), SERVER, 1001),
        (V4, SERVER, ("127.0.0.1", 0xA001), 1000),
        (V4, ("127.0.0.1", 0xA002), SERVER, None),  # nobody holds it any more
        (V4, ("127.0.0.1", 0xA005), SERVER, None),
        (V6, ("127.0.0.1", 0xA003), SERVER, 1003),
        (V6, ("::ffff:127.0.0.1", 0xA003, 0, 0), ("::ffff:127.0.0.1", 0x944D, 0, 0), 1003),
        (V4, ("::ffff:127.0.0.1", 0xA001, 0, 0), ("::ffff:127.0.0.1", 0x944D, 0, 0), 1001),
        (V6, ("::1", 0xA004, 0, 0), ("::1", 0x944D, 0, 0), 1004),
    ],
)
def test_lines_of_the_table(lines: tuple[str, ...], address: tuple, remote: tuple, user: int | None) -> None:  # type: ignore[type-arg]
    assert find_owner(lines, address, remote) == user


def cannot_be_asked(*_: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_both_ends_of_a_connection_of_this_process(
    family: int, host: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a sandbox that does not let the kernel be asked; else nobody reads the table."""
    if asked:
        monkeypatch.setattr(users, "_TABLES", ())
    else:
        monkeypatch.setattr(sock_diag, "_ask", cannot_be_asked)
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener, socket.create_connection(listener.getsockname()[:2]) as dialed:
        accepted, _ = listener.accept()
        with accepted:
            assert why_not(dialed, False) == why_not(accepted, False) == ""
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
            for one in (dialed, accepted):
                assert "it runs under another user, and this job has no secret" in why_not(one, False)
                assert why_not(one, True) == ""
            monkeypatch.setenv("AIODIST_ALLOW_INSECURE", "1")
            assert why_not(dialed, False) == ""


def test_who_cannot_be_told_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as one,
    ):
        monkeypatch.setattr(users, "_TABLES", ("nowhere",))
        monkeypatch.setattr(sock_diag, "_ask", cannot_be_asked)
        assert why_not(one, False).startswith(
            "its user is not known, and this job has no secret: set AIODIST_SECRET"
        )
        assert why_not(one, True) == ""
