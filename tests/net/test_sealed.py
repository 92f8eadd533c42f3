"""An authenticated socket: to who uses it as a plain one, also where that is slow; altered, it ends."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import Tampered, WireError
from aiodist.net.sealed import _IDLE_CHUNK, SealedSocket
from aiodist.net.wire.seal import Sealer

KEYS = (b"a" * 32, b"b" * 32)


class Poor:
    """A socket of a host that has no memory for two of three messages."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._calls = 0
        self.family = sock.family

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def send(self, *args: Any) -> int:
        self._fail()
        return self._sock.send(*args)

    def sendmsg(self, *args: Any) -> int:
        self._fail()
        return self._sock.sendmsg(*args)

    def _fail(self) -> None:
        self._calls += 1
        if self._calls % 3:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))


@contextmanager
def pair(slow: bool = False, poor: bool = False) -> Iterator[tuple[SealedSocket, SealedSocket]]:
    """Two ends; slow: that take a few KiB at a time; poor: the first one's host has hardly any memory."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
        if slow:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    first: Any = Poor(ends[0]) if poor else ends[0]
    one, two = SealedSocket(first, KEYS), SealedSocket(ends[1], KEYS[::-1])
    try:
        yield one, two
    finally:
        one.close()
        two.close()


def received(sock: SealedSocket, nbytes: int, at_once: int) -> bytes:
    """The bytes that are there, up to so many, read into places of a size."""
    got = bytearray()
    while len(got) < nbytes:
        places = [memoryview(bytearray(size)) for size in (at_once, 10)]
        try:
            (count,) = sock.recvmsg_into(places)
        except BlockingIOError:
            break
        assert count
        got += b"".join(places)[:at_once][:count]
        got += bytes(places[1])[: max(0, count - at_once)]
    return bytes(got)


@pytest.mark.parametrize(("slow", "poor"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("at_once", [1 << 20, 1000, 96])
def test_headers_and_payloads_arrive_as_they_were_sent(slow: bool, poor: bool, at_once: int) -> None:
    """Small messages, raw payloads and sealed ones in turn, offered again wherever there was no room."""
    rng = np.random.default_rng(1)
    with pair(slow, poor) as (one, two):
        got, want = bytearray(), bytearray()
        for number in range(12):
            header = bytes([number]) * 96
            payload = rng.bytes((0, 500, 30_000, 400_000)[number % 4])
            want += header + payload
            left = [header, payload]
            raw = number % 3 and len(payload) > 8192
            while left:
                try:
                    if raw:
                        sent = one.send_raw(header, memoryview(payload))
                    elif len(left) > 1:
                        sent = one.sendmsg(left)
                    else:
                        sent = one.send(left[0])
                except OSError:
                    sent = 0
                raw = False
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if left:
                    left[0] = left[0][sent:]
                got += received(two, 1 << 30, at_once)
        while len(got) < len(want):
            got += received(two, len(want) - len(got), at_once)
        assert got == want


def test_it_reads_as_a_plain_socket() -> None:
    with pair() as (one, two):
        with pytest.raises(BlockingIOError):
            two.recv(10)
        one.send(b"hello ")
        one.send(b"world")
        assert two.recv(3) in (b"hello ", b"hello world")  # all of what is authenticated, and beyond
        one.send(b"again")
        place = bytearray(3)
        assert two.recv_into(place) == 3
        assert two.pending()
        one.close()
        rest = b""
        while data := two.recv(10):
            rest += data
        assert (bytes(place) + rest).endswith(b"again")
        assert two.recv(10) == b"" == two.recv(10)
        assert two.recv_into(bytearray(5)) == 0


def test_what_came_with_the_handshake_is_not_lost() -> None:
    sealer = Sealer(KEYS[0])
    early = sealer.seal(b"early") + sealer.seal(b"and late")
    with pair() as (_, two):
        sock = SealedSocket(two._sock, KEYS[::-1], early[:-3])
        assert sock.pending()
        assert sock.recv(100) == b"early"
        assert not sock.pending()
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.setblocking(False)
        sock = SealedSocket(mine, KEYS[::-1], early[:-3])
        theirs.send(early[-3:])
        assert received(sock, 13, 100) == b"earlyand late"


def test_what_was_altered_ends_it() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.setblocking(False)
        good, evil = Sealer(KEYS[0]), Sealer(KEYS[1])
        for into in (False, True):
            sock = SealedSocket(mine, KEYS[::-1])
            theirs.send(evil.seal(b"evil"))
            with pytest.raises(Tampered):
                sock.recv_into(bytearray(100)) if into else sock.recv(100)
        sock = SealedSocket(mine, KEYS[::-1])
        theirs.send(good.announce(100) + b"raw")
        with pytest.raises(WireError, match="nothing authenticates"):
            sock.recv(100)


def test_a_member_cannot_send_records_of_nothing() -> None:
    """Any number of them could come, and the reader would go on looking for something behind them."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.setblocking(False)
        for nothing in (Sealer.seal(Sealer(KEYS[0]), b""), Sealer(KEYS[0]).announce(0)):
            for into in (False, True):
                sock = SealedSocket(mine, KEYS[::-1], nothing * 2)
                with pytest.raises(WireError, match="a record of 0 bytes"):
                    sock.recv_into(bytearray(100)) if into else sock.recv(100)


@pytest.mark.parametrize("over", [False, True], ids=["one place", "several"])
def test_what_came_before_a_reset_is_read_first(over: bool) -> None:
    """Also where one call finds both."""
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, socket.create_connection(listening.getsockname()) as theirs:
        mine, _ = listening.accept()
        with mine:
            record = Sealer(KEYS[0]).seal(b"d" * (_IDLE_CHUNK - 20))
            theirs.sendall(record)
            while len(mine.recv(len(record), socket.MSG_PEEK)) < len(record):
                pass
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            theirs.close()
            mine.setblocking(False)
            sock = SealedSocket(mine, KEYS[::-1])
            places = [memoryview(bytearray(_IDLE_CHUNK - 20)), memoryview(bytearray(100))]
            got = sock.recvmsg_into(places)[0] if over else sock.recv_into(bytearray(65536))
            assert got == _IDLE_CHUNK - 20
            assert sock.recv_into(bytearray(100)) == 0


def test_a_reader_is_woken_by_bytes_that_come_in_any_case() -> None:
    """The end of a raw payload; never by more than there will be, with tags that count as well."""
    ends = socket.create_server(("127.0.0.1", 0))
    with ends, socket.create_connection(ends.getsockname()) as theirs:
        mine, _ = ends.accept()
        mine.setblocking(False)
        with mine:
            sealer, sock = Sealer(KEYS[0]), SealedSocket(mine, KEYS[::-1])

            def mark(nbytes: int) -> int:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)
                return mine.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

            assert mark(5000) == 1
            theirs.sendall(sealer.seal(b"h") + sealer.announce(4000))
            assert received(sock, 1, 1) == b"h"
            received(sock, 1, 10)
            assert mark(3000) == 3000 and mark(5000) == 4000
            theirs.sendall(b"r" * 4000)
            assert len(received(sock, 4000, 4000)) == 4000
            assert mark(3000) == 1
