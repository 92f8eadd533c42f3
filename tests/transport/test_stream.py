"""Stream links: frames come through however the bytes are cut, and a peer's nonsense ends the link."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.base.errors import Tampered, WireError
from aiodist.net import buffered
from aiodist.net.sealed import SealedSocket
from aiodist.net.wire.frame import HEADER, Frame, Type, pack
from aiodist.transport.base import Key
from aiodist.transport.link import Message
from aiodist.transport.stream import StreamLink
from tests.support.channel_pair import turn_until

KEY = Key(1, 2, 3, 4)


class User:
    """A link's user that keeps what it gets and can be waited for."""

    def __init__(self) -> None:
        self.frames: list[tuple[Frame, bytes]] = []
        self.ends: list[tuple[bool, str | Tampered]] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writables = 0
        self.fail = False
        self.piece = 70_000  # of a payload that is received at a time
        self._place = bytearray()

    def received(self, frame: Frame, payload: memoryview) -> None:
        self.frames.append((frame, bytes(payload)))
        if self.fail:
            raise ZeroDivisionError

    def eager(self, record: memoryview) -> int:
        raise AssertionError("there is no ring")

    def place(self, frame: Frame, at: int) -> memoryview:
        if not at:
            self._place = bytearray(frame.nbytes)
        return memoryview(self._place)[at : at + self.piece]

    def placed(self, frame: Frame, at: int, nbytes: int) -> None:
        if at + nbytes == frame.nbytes:
            self.received(frame, memoryview(self._place))

    def returned(self, message: object) -> None:
        raise AssertionError("nothing is lent over a socket")

    def writable(self) -> None:
        self.writables += 1

    def ended(self, goodbye: bool, cause: str | Tampered) -> None:
        self.ends.append((goodbye, cause))
        self.over.set_result(None)


@asynccontextmanager
async def opened(leftover: bytes = b"") -> AsyncIterator[tuple[StreamLink, User, socket.socket]]:
    """A link, its user, and the bare socket at the other end."""
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    theirs.setblocking(False)
    link = StreamLink(asyncio.get_running_loop(), mine, leftover)
    user = User()
    link.start(user)
    try:
        yield link, user, theirs
    finally:
        link.kill()
        theirs.close()


def message(kind: Type, payload: bytes, **fields: Any) -> bytes:
    return pack(kind, *KEY, nbytes=len(payload), total=len(payload), **fields) + payload


COARSE = 500
NEAR = 200
"""Bytes around the end of a frame where cuts are as drawn; elsewhere they are `COARSE` at least: a byte at a
time through 900,000 takes minutes."""


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 100, 8192, 8193, 20_000, 150_000]), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 100_000), min_size=1, max_size=10),
    leftover=st.integers(0, 300),
)
def test_frames_survive_any_cut(sizes: list[int], cuts: list[int], leftover: int) -> None:
    payloads = [bytes((index + i * 7) % 251 for i in range(size)) for index, size in enumerate(sizes)]
    frames = [*(message(Type.DATA, payload) for payload in payloads), pack(Type.GOODBYE)]
    stream = b"".join(frames)
    edges = list(accumulate(map(len, frames), initial=0))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with opened(stream[:leftover]) as (_link, user, theirs):
            at, turn = min(leftover, len(stream)), 0
            while at < len(stream):
                step = cuts[turn % len(cuts)]
                if all(abs(at - edge) > NEAR for edge in edges):
                    ahead = min(edge - at for edge in edges if edge > at)
                    step = max(step, min(COARSE, ahead - NEAR))
                await loop.sock_sendall(theirs, stream[at : at + step])
                await asyncio.sleep(0)
                at, turn = at + step, turn + 1
            await user.over
            assert [payload for _, payload in user.frames] == payloads
            assert user.ends == [(True, "")]
            assert await loop.sock_recv(theirs, 1000) == pack(Type.GOODBYE)
            assert await loop.sock_recv(theirs, 1000) == b""

    asyncio.run(main())


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (b"GET / HTTP/1.1\r\n" + bytes(HEADER), "protocol error: a frame of unknown type 71"),
        (
            pack(Type.MAPPED, nbytes=8, total=8),
            "protocol error: a MAPPED frame on a link without shared memory",
        ),
        (message(Type.EAGER, bytes(9000)), "protocol error: a EAGER frame of 9000 bytes"),
    ],
)
async def test_nonsense_ends_the_link(raw: bytes, cause: str) -> None:
    async with opened() as (_link, user, theirs):
        theirs.send(raw[: HEADER + 10])
        await user.over
        assert user.ends == [(False, cause)]
        assert theirs.recv(10) == b""


async def test_an_end_without_goodbye_is_a_loss_after_what_was_sent() -> None:
    async with opened() as (link, user, theirs):
        theirs.send(message(Type.EAGER, b"last words"))
        theirs.close()
        link.post(pack(Type.CREDIT, word=1))  # fails: there is nobody; reading goes on to the end
        link.post(pack(Type.CREDIT, word=1))
        assert not user.ends
        await user.over
        assert [payload for _, payload in user.frames] == [b"last words"]
        assert [goodbye for goodbye, _ in user.ends] == [False]


async def test_closing_waits_for_the_answer() -> None:
    async with opened() as (link, user, theirs):
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        link.on_closed = lambda: gone.set_result(None)
        link.post(pack(Type.CREDIT, word=7))
        link.close()
        link.close()
        assert theirs.recv(1000) == pack(Type.CREDIT, word=7) + pack(Type.GOODBYE)
        assert not gone.done()
        theirs.send(message(Type.EAGER, b"too late") + message(Type.DATA, bytes(60_000)) + pack(Type.GOODBYE))
        await gone
        assert not user.frames
        assert not user.ends


async def test_a_full_socket_borrows_until_writable() -> None:
    loop = asyncio.get_running_loop()
    async with opened() as (link, user, theirs):
        data = bytearray(i % 253 for i in range(1 << 20))
        whole = Message(KEY, bytes(32), memoryview(data), lambda: None)
        total = bytearray()
        at = 0
        while link.room and at < len(data):
            link.write(whole, at, at + 65_536)
            at += 65_536
        assert not link.room
        link.post(pack(Type.CREDIT, word=5), memoryview(b""))
        link.keep()
        expected = b"".join(
            pack(Type.DATA, *KEY, nbytes=65_536, offset=i, total=len(data)) + data[i : i + 65_536]
            for i in range(0, at, 65_536)
        ) + pack(Type.CREDIT, word=5)
        data[:] = bytes(len(data))  # ours again
        while len(total) < len(expected):
            total += await loop.sock_recv(theirs, 1 << 20)
        assert total == expected
        await turn_until(lambda: bool(user.writables))
        assert link.room


class Poor:
    """A socket of a host that has no memory for every other of the messages that it is to send."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self._sock = sock
        self._number = number
        self._calls = 0
        self.family = sock.family

    def _send(self, *args: Any) -> int:
        self._calls += 1
        if self._calls % 2:
            raise OSError(self._number, os.strerror(self._number))
        return self._sock.sendmsg(*args)

    def send(self, data: bytes, flags: int) -> int:
        return self._send((data,), (), flags)

    def sendmsg(self, *args: Any) -> int:
        return self._send(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM], ids=errno.errorcode.get)
@pytest.mark.parametrize("sealed", [False, True])
async def test_a_host_without_memory_is_not_the_peers_fault(
    number: int, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link pauses, and goes on where it was, whatever it was to write."""
    monkeypatch.setattr(buffered, "AGAIN", 0.0)
    keys = (b"a" * 32, b"b" * 32)
    mine, theirs = socket.socketpair()
    for end in (mine, theirs):
        end.setblocking(False)
    poor: Any = Poor(mine, number)
    ends: list[Any] = [poor, theirs]
    if sealed:
        ends = [SealedSocket(poor, keys), SealedSocket(theirs, keys[::-1])]
    links = [StreamLink(asyncio.get_running_loop(), end) for end in ends]
    sender, receiver = User(), User()
    for link, user in zip(links, (sender, receiver), strict=True):
        link.start(user)
    payloads = [bytes([number]) * nbytes for number, nbytes in enumerate((0, 10, 5000, 60_000, 7, 2000))]
    for number, payload in enumerate(payloads):
        await turn_until(lambda: links[0].room)
        if number % 2:
            links[0].post(
                pack(Type.EAGER, *KEY, nbytes=len(payload), total=len(payload)), memoryview(payload)
            )
        else:
            links[0].write(Message(KEY, bytes(32), memoryview(payload), lambda: None), 0, len(payload))
    links[0].post(pack(Type.CREDIT, word=5))
    await turn_until(lambda: len(receiver.frames) == len(payloads) + 1)
    assert [payload for _, payload in receiver.frames] == [*payloads, b""]
    assert not sender.ends and not receiver.ends
    for link in links:
        link.kill()


async def test_a_callback_that_fails_loses_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    monkeypatch.setattr(loop, "call_exception_handler", complaints.append)
    async with opened() as (_link, user, theirs):
        user.fail = True
        theirs.send(message(Type.EAGER, b"one") + message(Type.EAGER, b"two") + pack(Type.GOODBYE))
        await user.over
        assert [payload for _, payload in user.frames] == [b"one", b"two"]
        assert [type(context["exception"]) for context in complaints] == [ZeroDivisionError] * 2


async def test_a_user_that_refuses_a_frame_ends_the_link() -> None:
    async with opened() as (_link, user, theirs):

        def refuse(frame: Frame, payload: memoryview) -> None:
            raise WireError("not now")

        user.received = refuse  # type: ignore[method-assign]
        theirs.send(message(Type.EAGER, b"one"))
        await user.over
        assert user.ends == [(False, "protocol error: not now")]
