"""The owner of a socket, asked of the kernel: for every spelling of an address, and where there is none."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys

import pytest

from aiodist.net import sock_diag
from aiodist.net.sock_diag import owner
from tests.ports import needs_ipv6

HERE = "127.0.0.1"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.fixture(autouse=True)
def it_may_be_asked() -> None:
    with socket.create_server((HERE, 0)) as one, socket.create_connection(one.getsockname()) as other:
        try:
            owner(other.getsockname(), one.getsockname())
        except OSError as error:
            pytest.skip(f"the kernel may not be asked here: {error}")


def test_both_ends_have_an_owner_as_long_as_somebody_holds_them() -> None:
    with socket.create_server((HERE, 0)) as listening, socket.socket() as dialed:
        there = listening.getsockname()
        dialed.connect(there)
        here = dialed.getsockname()
        assert owner(here, there) == os.geteuid()
        assert owner(there, here) is None  # nobody holds it before it was accepted
        accepted, _ = listening.accept()
        with accepted:
            assert owner(there, here) == os.geteuid()
            dialed.close()
            assert owner(here, there) is None  # the kernel still knows it
            assert owner(there, (HERE, here[1] ^ 1)) is None  # the listening socket is not it


def test_there_is_no_such_socket() -> None:
    with (
        socket.create_server((HERE, 0)) as listening,
        socket.create_connection(listening.getsockname()) as one,
    ):
        accepted, _ = listening.accept()
        with accepted, socket.socket() as other:
            other.bind((HERE, 0))
            with pytest.raises(FileNotFoundError):
                sock_diag._ask(other.getsockname(), one.getsockname())
            with pytest.raises(FileNotFoundError):  # nor an own end: perhaps this kernel cannot tell
                owner(other.getsockname(), one.getsockname())


@pytest.mark.parametrize("dialer", [socket.AF_INET, socket.AF_INET6])
def test_an_end_that_spells_ipv4_as_ipv6(dialer: socket.AddressFamily) -> None:
    needs_ipv6()
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listening,
        socket.socket(dialer) as one,
    ):
        port = listening.getsockname()[1]
        one.connect((HERE if dialer == socket.AF_INET else f"::ffff:{HERE}", port))
        accepted, _ = listening.accept()
        with accepted:
            mine = (HERE, one.getsockname()[1])
            assert owner(mine, (HERE, port)) == owner((HERE, port), mine) == os.geteuid()


def test_an_end_that_is_bound_to_an_interface() -> None:
    """An address of an unauthenticated peer may be."""
    with socket.create_server((HERE, 0)) as listening, socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        one.connect(listening.getsockname())
        assert owner(one.getsockname(), listening.getsockname()) == os.geteuid()


@pytest.mark.parametrize("kind", [2, 3, 20], ids=["error", "done", "found"])
@pytest.mark.parametrize("nbytes", [0, 7, 16, 19, 20, 40, 87])
def test_an_answer_that_is_too_short_is_an_os_error(
    kind: int, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kernel:
        """Answers with the beginning of a message."""

        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> Kernel:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def send(self, data: bytes) -> None:
            pass

        def recv(self, most: int) -> bytes:
            head = struct.pack("=IHHII", nbytes, kind, 0, 0, 0)
            return (head + struct.pack("=i", -errno.EPERM) + bytes(100))[:nbytes]

    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", Kernel)
        with pytest.raises(PermissionError if kind == 2 and nbytes >= 20 else OSError):
            sock_diag._ask((HERE, 1), (HERE, 2))
