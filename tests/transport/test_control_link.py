"""Control links bound what waits, refuse nonsense, and end once."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from aiodist.base.errors import Tampered, UsageError
from aiodist.net import buffered
from aiodist.net.sealed import SealedSocket
from aiodist.net.wire.seal import Opener, Sealer
from aiodist.transport import CONTROL_MESSAGE, ControlLink
from aiodist.transport.control_link import UNACKNOWLEDGED
from aiodist.transport.line import MemoryLine, SocketLine
from tests.levels import COSTLY
from tests.support.channel_pair import turn_until


class End:
    """A socket control link with everything that it says."""

    def __init__(self, sock: socket.socket, leftover: bytes = b"") -> None:
        loop = asyncio.get_running_loop()
        self.forgotten: list[ControlLink] = []
        self.messages: list[bytes] = []
        self.closed: asyncio.Future[tuple[bool, str]] = loop.create_future()
        self.line = SocketLine(loop, sock, leftover, silence=UNACKNOWLEDGED)
        self.link = ControlLink(loop, self.line, 3, self.forgotten.append)

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


async def test_what_ends_a_link_is_told_before_the_peer_can_see_its_end(sockets: Sockets) -> None:
    """Else it takes that for this process's death, and may be the first whom the others believe."""
    end = End(sockets[0])
    end.listen()
    standing = []
    end.link.on_closed = lambda goodbye, cause: standing.append(sockets[0].fileno() >= 0)
    sockets[1].send(struct.pack("<I", CONTROL_MESSAGE + 1))
    await turn_until(lambda: bool(standing))
    assert standing == [True]
    assert sockets[0].fileno() < 0


class Endless:
    """A socket whose peer takes nothing any more, and writes without end."""

    def __init__(self, sock: socket.socket) -> None:
        self.family = sock.family
        self.fileno = sock.fileno
        self.close = sock.close

    def send(self, data: bytes, flags: int) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    def recv(self, nbytes: int) -> bytes:
        return (struct.pack("<I", 1020) + bytes(1020)) * (nbytes // 1024)


async def test_a_peer_that_only_writes_does_not_hold_the_loop(sockets: Sockets) -> None:
    end = End(Endless(sockets[0]))  # type: ignore[arg-type]
    end.listen()
    end.link.send(b"nobody takes this")
    assert await end.closed == (False, "Broken pipe")


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
    loop = asyncio.get_running_loop()
    memory = ControlLink(loop, MemoryLine(loop), 1, lambda link: None)
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
    loop = asyncio.get_running_loop()
    memory = ControlLink(loop, MemoryLine(loop), 1, lambda link: None)
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
        link = ControlLink(loop, SocketLine(loop, one, silence=UNACKNOWLEDGED), 3, lambda link: None)
        assert link.far
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert 0 < one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) < 1250
        link.kill()
        two.close()


async def test_a_far_link_that_is_silent_is_kept_alive_by_the_kernels() -> None:
    loop = asyncio.get_running_loop()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        two, _ = server.accept()
        one.setblocking(False)
        link = ControlLink(loop, SocketLine(loop, one, silence=UNACKNOWLEDGED), 3, lambda link: None)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
                assert one.getsockopt(socket.IPPROTO_TCP, name) == 1
        link.kill()
        two.close()


def frames(data: bytes) -> list[bytes]:
    """The messages in what a peer got."""
    found = []
    while data:
        (nbytes,) = struct.unpack_from("<I", data)
        found.append(data[4 : 4 + nbytes])
        data = data[4 + nbytes :]
    return found


async def test_another_thread_posts_while_the_loop_is_stuck(sockets: Sockets) -> None:
    end = End(sockets[0])
    end.listen()
    end.link.send(b"loop")
    thread = threading.Thread(target=end.link.post, args=(b"thread",))
    thread.start()
    thread.join()  # the loop does not turn meanwhile
    assert frames(sockets[1].recv(1000)) == [b"loop", b"thread"]
    with pytest.raises(UsageError):
        end.link.post(b"")
    end.link.kill()
    end.link.post(b"nobody")
    assert sockets[1].recv(1000) == b""


@pytest.mark.slow(COSTLY)
async def test_what_is_posted_does_not_tear_what_the_loop_sends(sockets: Sockets) -> None:
    """Both write at once, to a peer that reads slowly: whole messages arrive, each writer's in order."""
    end = End(sockets[0])
    end.listen()
    sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    over = threading.Event()

    def chatter() -> None:
        number = 0
        while not over.is_set():
            end.link.post(b"t" + number.to_bytes(4, "big") * 7)
            number += 1

    thread = threading.Thread(target=chatter)
    thread.start()
    loop = asyncio.get_running_loop()
    data = b""
    try:
        for number in range(2000):
            end.link.send(b"l" + number.to_bytes(4, "big") * (1 + number % 300))
            while end.line._out.unread > 30_000:
                data += await loop.sock_recv(sockets[1], 10_000)
    finally:
        over.set()
        thread.join()
    end.link.close()
    while not data.endswith(b"\0\0\0\0") or end.line._out.queue:
        data += await loop.sock_recv(sockets[1], 10_000)
    got = frames(data)
    assert got.pop() == b""  # goodbye
    for writer in (b"l", b"t"):
        numbers = [int.from_bytes(message[1:5], "big") for message in got if message[:1] == writer]
        assert numbers == sorted(set(numbers))
        assert writer == b"t" or len(numbers) == 2000
    assert all(message[1:5] * (len(message) // 4) == message[1:] for message in got)
    end.link.kill()


async def test_what_is_posted_to_a_peer_that_does_not_read_is_dropped_or_waits(sockets: Sockets) -> None:
    end = End(sockets[0])
    end.listen()
    for _ in range(20_000):
        end.link.post(bytes(1000))
    assert end.line._out.unread <= 1004  # what was begun
    await turn_until(lambda: end.line._out.wanted)
    end.link.kill()


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


class Poor(Dying):
    """A socket of a host that has no memory for the next few messages."""

    family = socket.AF_UNIX

    def __init__(self, sock: socket.socket, error: int) -> None:
        super().__init__(sock, error)
        self.left = 3

    def recv(self, nbytes: int) -> bytes:
        return self._sock.recv(nbytes)

    def send(self, data: bytes, flags: int = 0) -> int:
        if self.left:
            self.left -= 1
            raise OSError(self._error, os.strerror(self._error))
        return self._sock.send(data, flags)

    def sendmsg(self, buffers: Sequence[memoryview], ancillary: Sequence[Any], flags: int) -> int:
        return self.send(b"".join(buffers), flags)


@pytest.mark.parametrize("error", [errno.ENOBUFS, errno.ENOMEM], ids=errno.errorcode.get)
@pytest.mark.parametrize("way", ["send", "post"])
async def test_a_host_without_memory_is_not_the_peers_fault(
    error: int, way: str, sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffered, "AGAIN", 0.0)
    poor = Poor(sockets[0], error)
    end = End(poor)  # type: ignore[arg-type]
    end.listen()
    getattr(end.link, way)(b"one")
    end.link.send(b"two")
    got = b""
    while len(got) < 14:
        got += await asyncio.get_running_loop().sock_recv(sockets[1], 100)
    assert frames(got) == [b"one", b"two"]
    assert not poor.left
    assert not end.closed.done()
    end.link.kill()


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


KEYS = (b"a" * 32, b"b" * 32)


def sealed(
    sock: socket.socket, leftover: bytes = b""
) -> tuple[End, asyncio.Future[Tampered], Sealer, Opener]:
    """A link whose messages are authenticated, and what its peer seals and opens with."""
    end = End(SealedSocket(sock, KEYS, leftover))  # type: ignore[arg-type]
    tampered: asyncio.Future[Tampered] = asyncio.get_running_loop().create_future()
    end.link.on_tampered = tampered.set_result
    return end, tampered, Sealer(KEYS[1]), Opener(KEYS[0])


async def test_messages_that_are_authenticated(sockets: Sockets) -> None:
    """Also those that came with the handshake, in pieces, posted by another thread, and the goodbyes."""
    early = Sealer(KEYS[1])
    first = early.seal(struct.pack("<I", 2) + b"hi")
    end, tampered, sealer, opener = sealed(sockets[0], first)
    sealer.seal(struct.pack("<I", 2) + b"hi")
    end.listen()
    await turn_until(lambda: end.messages == [b"hi"])
    end.link.send(b"one")
    await asyncio.to_thread(end.link.post, b"two")
    assert opener.feed(sockets[1].recv(1000)) == struct.pack("<I3s", 3, b"one") + struct.pack(
        "<I3s", 3, b"two"
    )
    record = sealer.seal(struct.pack("<I", 3) + b"you" + struct.pack("<I", 0))
    for byte in record:
        sockets[1].send(bytes([byte]))
        await asyncio.sleep(0)
    assert await end.closed == (True, "")
    assert end.messages == [b"hi", b"you"] and not tampered.done()
    assert opener.feed(sockets[1].recv(1000)) == struct.pack("<I", 0)


async def test_who_finds_a_message_altered_says_so(sockets: Sockets) -> None:
    """To its owner and to the peer, which is told on the way that was left alone; nothing is delivered."""
    end, tampered, sealer, opener = sealed(sockets[0])
    end.listen()
    record = bytearray(sealer.seal(struct.pack("<I", 4) + b"evil"))
    record[5] ^= 1
    sockets[1].send(record + sealer.seal(struct.pack("<I", 4) + b"good"))
    assert "the data were altered on the network path" in str(await tampered)
    assert end.messages == [] and not end.closed.done() and end.forgotten == [end.link]
    assert opener.feed(sockets[1].recv(1000)) == struct.pack("<I", 0xFFFFFFFF)


async def test_who_finds_a_message_altered_says_so_behind_what_waits(sockets: Sockets) -> None:
    """Else the peer, which reads slowly for a moment, would take it for dead."""
    end, tampered, sealer, opener = sealed(sockets[0])
    end.listen()
    message = b"z" * CONTROL_MESSAGE
    count = 0
    while not end.line._out.queue:
        end.link.send(message)
        count += 1
    sockets[1].send(flipped(sealer.seal(struct.pack("<I", 4) + b"evil")))
    await tampered
    end.link.send(b"nobody hears this")
    end.link.drain()
    end.link.close()
    got = b""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(sockets[1], 1 << 20):
        got += opener.feed(data)
    frame = struct.pack("<I", len(message)) + message
    assert got == frame * count + struct.pack("<I", 0xFFFFFFFF)
    assert end.messages == [] and not end.closed.done() and end.forgotten == [end.link]


def flipped(record: bytes) -> bytes:
    return record[:-1] + bytes([record[-1] ^ 1])


async def test_who_is_told_that_its_message_was_altered(sockets: Sockets) -> None:
    end, tampered, sealer, _ = sealed(sockets[0])
    end.listen()
    sockets[1].send(sealer.seal(struct.pack("<I", 2) + b"ok" + struct.pack("<I", 0xFFFFFFFF)))
    await tampered
    assert end.messages == [b"ok"] and not end.closed.done() and end.forgotten == [end.link]


async def test_a_payload_on_a_control_link_is_nonsense(sockets: Sockets) -> None:
    end, tampered, sealer, _ = sealed(sockets[0])
    end.listen()
    sockets[1].send(sealer.announce(1 << 30) + bytes(1000))
    goodbye, cause = await end.closed
    assert not goodbye and cause.startswith("protocol error: bytes that nothing authenticates")
    assert not tampered.done()
