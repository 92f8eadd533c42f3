"""A buffered socket sends all in order, whatever the socket takes, and says once when it cannot."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import weakref
from collections.abc import Iterator

import pytest

from aiodist.net.buffered import BufferedSocket, PostedSocket
from tests.support.channel_pair import turn_until


class Owner:
    """An owner that notes what it is told."""

    def __init__(self, sock: socket.socket, kind: type[BufferedSocket] = BufferedSocket) -> None:
        self.got = b""
        self.ends = 0
        self.drained = 0
        self.errors: list[OSError] = []
        self.buffer = kind(asyncio.get_running_loop(), sock, self.readable, self.emptied, self.errors.append)

    def readable(self) -> None:
        data = self.buffer.read()
        if data:
            self.got += data
        elif data is not None:
            self.ends += 1
            self.buffer.unwatch()

    def emptied(self) -> None:
        self.drained += 1


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    for sock in pair:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    yield pair
    for sock in pair:
        sock.close()


Sockets = tuple[socket.socket, socket.socket]


async def all_of(sock: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        data += await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
    return data


async def test_what_fits_has_left_when_write_returns(sockets: Sockets) -> None:
    owner = Owner(sockets[0])
    owner.buffer.write(b"hello")
    assert sockets[1].recv(10) == b"hello"
    assert not owner.buffer.unread and not owner.buffer.wanted
    owner.buffer.close()


async def test_what_does_not_fit_follows_in_order(sockets: Sockets) -> None:
    owner = Owner(sockets[0])
    pieces = [bytes([number]) * (1 + 997 * number) for number in range(60)]
    for piece in pieces:
        owner.buffer.write(piece)
    assert owner.buffer.wanted
    whole = b"".join(pieces)
    assert await all_of(sockets[1], len(whole)) == whole
    await turn_until(lambda: owner.drained == 1)
    assert not owner.buffer.unread and not owner.buffer.queue
    owner.buffer.close()


async def test_what_is_borrowed_is_copied_when_it_is_to_be_owned(sockets: Sockets) -> None:
    owner = Owner(sockets[0])
    owner.buffer.write(bytes(100_000))
    lent = bytearray(b"a" * 1000)
    owner.buffer.keep(memoryview(lent))
    owner.buffer.write(b"behind it")
    owner.buffer.own()
    lent[:] = b"b" * 1000
    assert await all_of(sockets[1], 101_009) == bytes(100_000) + b"a" * 1000 + b"behind it"
    owner.buffer.close()


async def test_a_peer_that_is_gone_is_said_once_and_what_it_said_is_read(sockets: Sockets) -> None:
    owner = Owner(sockets[0])
    sockets[1].send(b"last words")
    sockets[1].close()
    owner.buffer.write(b"nobody")
    owner.buffer.write(b"reads this")
    assert not owner.buffer.is_open and not owner.errors
    await turn_until(lambda: bool(owner.errors))
    assert [type(error) for error in owner.errors] == [BrokenPipeError]
    owner.readable()
    owner.readable()
    assert owner.got == b"last words" and owner.ends == 1
    owner.buffer.close()


async def test_another_thread_sends_only_where_nothing_waits(sockets: Sockets) -> None:
    owner = Owner(sockets[0], PostedSocket)
    assert isinstance(owner.buffer, PostedSocket)
    await asyncio.to_thread(owner.buffer.post, b"thread")
    assert sockets[1].recv(10) == b"thread"
    owner.buffer.write(bytes(100_000))
    await asyncio.to_thread(owner.buffer.post, b"dropped")
    owner.buffer.write(b"loop")
    assert await all_of(sockets[1], 100_004) == bytes(100_000) + b"loop"
    owner.buffer.close()
    owner.buffer.post(b"nobody")
    owner.buffer.write(b"nobody")


async def test_what_a_thread_begins_the_loop_ends(sockets: Sockets) -> None:
    owner = Owner(sockets[0], PostedSocket)
    assert isinstance(owner.buffer, PostedSocket)
    thread = threading.Thread(target=owner.buffer.post, args=(bytes(100_000),))
    thread.start()
    thread.join()
    assert 0 < owner.buffer.unread < 100_000
    assert await all_of(sockets[1], 100_000) == bytes(100_000)
    await turn_until(lambda: owner.drained == 1)
    owner.buffer.close()


async def test_reading_begins_and_rests(sockets: Sockets) -> None:
    owner = Owner(sockets[0])
    sockets[1].send(b"one")
    await asyncio.sleep(0)
    assert owner.got == b""
    owner.buffer.watch()
    owner.buffer.watch()
    await turn_until(lambda: owner.got == b"one")
    owner.buffer.unwatch()
    sockets[1].send(b"two" * 100)
    await asyncio.sleep(0)
    assert owner.got == b"one"
    owner.buffer.watch()
    await turn_until(lambda: owner.got == b"one" + b"two" * 100)
    sockets[1].close()
    await turn_until(lambda: owner.ends == 1)
    owner.buffer.close()
    owner.buffer.close()
    owner.buffer.watch()  # the number of its descriptor may be another's by now


class Layer:
    """A layer that has read more than was asked for."""

    def __init__(self, sock: socket.socket) -> None:
        self.family, self.fileno, self.close = sock.family, sock.fileno, sock.close
        self.held = [b"held"]

    def pending(self) -> bool:
        return bool(self.held)

    def recv(self, nbytes: int) -> bytes:
        if not self.held:
            raise BlockingIOError
        return self.held.pop()


async def test_what_a_layer_holds_is_read_though_no_selector_tells_of_it(sockets: Sockets) -> None:
    owner = Owner(Layer(sockets[0]))  # type: ignore[arg-type]
    owner.buffer.watch()
    assert owner.got == b""
    await turn_until(lambda: owner.got == b"held")
    owner.buffer.close()


async def test_its_end_leaves_nothing_behind(sockets: Sockets) -> None:
    owner = Owner(sockets[0])
    owner.buffer.watch()
    owner.buffer.write(bytes(100_000))
    assert owner.buffer.unread
    number = sockets[0].fileno()
    owner.buffer.stop()
    assert not owner.buffer.unread
    os.fstat(number)  # to the peer nothing has happened
    owner.buffer.close()
    with pytest.raises(OSError):
        os.fstat(number)
    gone = weakref.ref(owner)
    gc.disable()
    try:
        del owner
        assert gone() is None
    finally:
        gc.enable()
