"""Control links bound what waits, refuse nonsense, and end once."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from aiodist.errors import UsageError
from aiodist.testing.channel_pair import turn_until
from aiodist.transport.base import CONTROL_MESSAGE, ControlLink
from aiodist.transport.control_link import MemoryControl, SocketControl


class End:
    """A socket control link with everything that it says."""

    def __init__(self, sock: socket.socket, leftover: bytes = b"") -> None:
        loop = asyncio.get_running_loop()
        self.forgotten: list[ControlLink] = []
        self.messages: list[bytes] = []
        self.closed: asyncio.Future[tuple[bool, str]] = loop.create_future()
        self.link = SocketControl(loop, sock, 3, self.forgotten.append, leftover)

    def listen(self) -> None:
        self.link.on_closed = lambda goodbye, cause: self.closed.set_result((goodbye, cause))
        self.link.on_message = self.messages.append


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    for sock in pair:
        sock.setblocking(False)
    yield pair
    for sock in pair:
        sock.close()


Sockets = tuple[socket.socket, socket.socket]


async def test_what_came_behind_the_handshake_is_delivered_once_somebody_listens(sockets: Sockets) -> None:
    end = End(sockets[0], struct.pack("<I", 2) + b"hi" + struct.pack("<I", 3))
    sockets[1].send(b"you" + struct.pack("<I", 0))
    await asyncio.sleep(0)
    assert not end.messages
    end.listen()
    assert not end.messages
    assert await end.closed == (True, "")
    assert end.messages == [b"hi", b"you"]
    assert end.forgotten == [end.link]
    assert sockets[1].recv(100) == struct.pack("<I", 0)
    end.link.send(b"ignored")
    end.link.close()
    end.link.kill()


async def test_a_message_that_is_too_long_ends_the_link(sockets: Sockets) -> None:
    end = End(sockets[0])
    end.listen()
    sockets[1].send(struct.pack("<I", CONTROL_MESSAGE + 1))
    goodbye, cause = await end.closed
    assert not goodbye
    assert cause == f"protocol error: a control message of {CONTROL_MESSAGE + 1} bytes"


async def test_a_peer_that_does_not_read_is_lost(sockets: Sockets) -> None:
    end = End(sockets[0])
    end.listen()
    for _ in range(40):
        end.link.send(bytes(CONTROL_MESSAGE))
    assert not end.closed.done()
    assert await end.closed == (False, "it does not read its control link (1 MiB wait)")


async def test_an_end_of_the_peer_is_reported_once(sockets: Sockets) -> None:
    end = End(sockets[0])
    end.listen()
    sockets[1].send(struct.pack("<I", 4) + b"last")
    sockets[1].close()
    end.link.send(b"nobody hears this")
    end.link.send(b"nor this")
    goodbye, _cause = await end.closed
    assert not goodbye
    assert end.messages == [b"last"]
    assert end.forgotten == [end.link]


async def test_closing_delivers_what_was_sent_to_a_slow_reader(sockets: Sockets) -> None:
    end = End(sockets[0])
    for _ in range(8):
        end.link.send(bytes(CONTROL_MESSAGE))
    end.link.close()
    got = 0
    loop = asyncio.get_running_loop()
    while got < 8 * (CONTROL_MESSAGE + 4) + 4:
        got += len(await loop.sock_recv(sockets[1], 1 << 16))
    assert not end.forgotten
    sockets[1].close()
    await turn_until(lambda: bool(end.forgotten))


@pytest.mark.parametrize("message", [b"", bytes(CONTROL_MESSAGE + 1)])
async def test_sizes_are_checked(message: bytes, sockets: Sockets) -> None:
    end = End(sockets[0])
    memory = MemoryControl(asyncio.get_running_loop(), 1, lambda link: None)
    for link in (end.link, memory):
        with pytest.raises(UsageError):
            link.send(message)
    end.link.kill()


async def test_draining_delivers_all_that_is_here_and_the_end(sockets: Sockets) -> None:
    end = End(sockets[0], struct.pack("<I", 2) + b"hi")
    end.link.drain()
    assert not end.messages  # nobody listens yet
    end.listen()
    for word in (b"one", b"two", bytes(CONTROL_MESSAGE)):
        sockets[1].send(struct.pack("<I", len(word)) + word)
    end.link.drain()
    assert [len(message) for message in end.messages] == [2, 3, 3, CONTROL_MESSAGE]
    assert not end.closed.done()
    end.link.drain()
    sockets[1].send(struct.pack("<I", 4) + b"last")
    sockets[1].close()
    end.link.drain()
    assert end.closed.result() == (False, "connection ended without goodbye")
    assert end.messages[4:] == [b"last"]
    end.link.drain()


async def test_draining_hears_a_goodbye_and_not_after_it(sockets: Sockets) -> None:
    end = End(sockets[0])
    end.listen()
    sockets[1].send(struct.pack("<I", 0) + struct.pack("<I", 2) + b"no")
    end.link.drain()
    assert end.closed.result() == (True, "")
    assert end.messages == []
    memory = MemoryControl(asyncio.get_running_loop(), 1, lambda link: None)
    memory.drain()


async def test_a_listener_may_drain_again(sockets: Sockets) -> None:
    end = End(sockets[0])
    end.link.on_closed = lambda goodbye, cause: None

    def hear(message: bytes) -> None:
        end.messages.append(message)
        end.link.drain()

    end.link.on_message = hear
    for number in range(5):
        sockets[1].send(struct.pack("<I", 1) + bytes([number]))
    await turn_until(lambda: len(end.messages) == 5)
    assert end.messages == [bytes([number]) for number in range(5)]
    end.link.kill()


async def test_another_host_has_to_acknowledge_in_time() -> None:
    loop = asyncio.get_running_loop()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        two, _ = server.accept()
        one.setblocking(False)
        link = SocketControl(loop, one, 3, lambda link: None)
        assert link.far
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert 0 < one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) < 1250
        link.kill()
        two.close()


class Dying:
    """A connected socket whose kernel has given up; a wrapper, as TLS has one."""

    family = socket.AF_INET

    def __init__(self, sock: socket.socket, error: int) -> None:
        self._sock = sock
        self._error = error

    def recv(self, nbytes: int) -> bytes:
        raise OSError(self._error, os.strerror(self._error))

    def fileno(self) -> int:
        return self._sock.fileno()

    def setsockopt(self, level: int, name: int, value: int) -> None:
        raise OSError(errno.ENOPROTOOPT, "not here")

    def close(self) -> None:
        self._sock.close()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errno.ETIMEDOUT, "its host does not answer (no acknowledgement for over "),
        (errno.EHOSTUNREACH, "its host does not answer (no acknowledgement for over "),
        (errno.ECONNRESET, os.strerror(errno.ECONNRESET)),
    ],
)
async def test_a_silent_host_is_called_so(error: int, words: str, sockets: Sockets) -> None:
    end = End(Dying(sockets[0], error))  # type: ignore[arg-type]
    assert end.link.far
    end.listen()
    sockets[1].send(b"!")
    goodbye, cause = await end.closed
    assert not goodbye
    assert cause.startswith(words)
