"""Taking connections when there is nothing to take them with: it is said, and tried again."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from typing import Any

import pytest

from aiodist.net import listener
from aiodist.net.listener import Listener
from aiodist.rendezvous import StoreServer
from aiodist.transport import SocketEndpoint

HOST = "127.0.0.1"
LOG = logging.getLogger("aiodist.tests")


class Failing(socket.socket):
    """Listens; the first connections cannot be accepted."""

    def __init__(self, *errors: int) -> None:
        super().__init__()
        self.errors = list(errors)
        self.bind((HOST, 0))
        self.listen()
        self.setblocking(False)

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super().accept()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Errors that the loop is left to tell; here they fail no test."""
    errors: list[object] = []

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        errors.append(context["exception"])

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_exception_handler", note)
    return errors


async def greet(sock: Failing) -> None:
    """Connect, say a word, and return when a listener has handed the connection over."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[socket.socket] = loop.create_future()

    def turned_away(sock: socket.socket, why: str) -> None:
        raise AssertionError(why)

    listening = Listener(loop, [sock], lambda sock, deadline: accepted.set_result(sock), turned_away, LOG)
    with socket.create_connection(sock.getsockname()) as peer:
        peer.send(b"hello")
        (await accepted).close()
    listening.close()
    listening.close()


async def test_without_descriptors_it_is_said_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, told: list[object]
) -> None:
    monkeypatch.setattr(listener, "_PAUSE", 0.0)
    with caplog.at_level(logging.ERROR, LOG.name):
        await greet(Failing(errno.EMFILE, errno.ENFILE))
    assert caplog.messages == [
        "nobody is accepted for 0 s: Too many open files",
        "nobody is accepted for 0 s: Too many open files in system",
    ]
    assert told == []


async def test_any_other_error_is_the_loops_to_tell(
    monkeypatch: pytest.MonkeyPatch, told: list[object]
) -> None:
    monkeypatch.setattr(listener, "_PAUSE", 0.0)
    await greet(Failing(errno.EPERM, errno.ECONNABORTED, errno.EINTR, errno.EINVAL))
    assert [error.errno for error in told if isinstance(error, OSError)] == [errno.EPERM, errno.EINVAL]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EINVAL])
@pytest.mark.parametrize("who", ["store", "endpoint"])
async def test_nobody_tries_without_a_pause_or_a_word(
    who: str,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    told: list[object],
) -> None:
    """The stores' and the ranks' listeners had drifted: one held the loop, the other never said a word."""
    monkeypatch.setattr(listener, "_PAUSE", 1000.0)
    if who == "store":
        server = await StoreServer.start(HOST, 0, "job", b"secret")
        address = (HOST, server.port)
    else:
        endpoint = await SocketEndpoint.open(rank=0, job="job", secret=b"secret", mode="tcp")
        address = tuple(endpoint.card["tcp"])
    tries = []
    failed = asyncio.Event()

    def accept(sock: socket.socket) -> None:
        tries.append(sock)
        failed.set()
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", accept)
        with caplog.at_level(logging.ERROR, "aiodist"), socket.create_connection(address):
            await failed.wait()
            for _ in range(10):
                await asyncio.sleep(0)
    assert len(tries) == 1
    words = [*caplog.messages, *map(str, told)]
    assert len(words) == 1 and os.strerror(number) in words[0]
    await (server.aclose() if who == "store" else endpoint.aclose())


async def test_who_depends_on_it_is_told_when_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_PAUSE", 0.0)
    loop = asyncio.get_running_loop()
    told: list[int | None] = []
    accepted: asyncio.Future[socket.socket] = loop.create_future()
    sock = Failing(*[errno.EMFILE] * 4)

    def enter(sock: socket.socket, deadline: float) -> None:
        accepted.set_result(sock)

    def ignore(sock: socket.socket, why: str) -> None:
        raise AssertionError(why)

    listening = Listener(loop, [sock], enter, ignore, LOG, lambda error: told.append(error.errno))
    with socket.create_connection(sock.getsockname()) as peer:
        peer.send(b"hello")
        (await accepted).close()
    assert told == []  # it was over soon
    accepted = loop.create_future()
    sock.errors = [errno.ENFILE] * 12
    with socket.create_connection(sock.getsockname()) as peer:
        peer.send(b"hello")
        (await accepted).close()
    assert told == [errno.ENFILE]
    listening.close()
