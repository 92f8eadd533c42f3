"""A TCP socket whose bytes are authenticated, with the keys of a handshake; for connections without TLS.

What arrives is handed on once its tag was found right (`wire.seal`). The payloads of tensors go without: to
look at each of their bytes once more, at both ends, would cost more than sending them (figures are in
`docs/security.md`). The writer says which payload that is (`send_raw`); its length is authenticated, and it
goes straight from the caller's memory and into the receiver's.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from aiodist.base.errors import WireError
from aiodist.net.records import Bytes, RecordSocket
from aiodist.net.wire.seal import Opener, Sealer

_CHUNK = 256 << 10  # bytes that are read at a time
_IDLE_CHUNK = 16 << 10  # likewise, where it is not busy (`recv` allocates what is asked for), or of headers
_SMALL = 64 << 10  # up to here what is sent becomes one record in one go


class SealedSocket(RecordSocket):
    """Authenticated records over a connected, non-blocking TCP socket, which it owns.

    Args:
        sock: the connection, past its handshake.
        keys: `Handshake.keys`.
        leftover: what was read behind the handshake; `pending` says whether there is any.

    Every reading method raises `Tampered` where what arrived is not what the peer sent, and `recv`
    `WireError` where a payload comes. Nothing of it, or behind it, is handed on: close the connection.
    """

    def __init__(self, sock: socket.socket, keys: tuple[bytes, bytes], leftover: bytes = b"") -> None:
        super().__init__(sock)
        self._sealer, self._opener = Sealer(keys[0]), Opener(keys[1])
        self._early = leftover
        self._plain = memoryview(b"")  # authenticated, and not handed on yet
        self._raw = 0  # bytes of a raw payload that were announced, and have not left yet
        self._chunk = _IDLE_CHUNK
        self._dry = False  # the last read took all that was there: another would only say so

    def pending(self) -> bool:
        """Whether something was read from the socket that was not handed on."""
        return bool(self._plain or self._early or self._opener.pending)

    # Reading.

    def recv(self, nbytes: int) -> bytes:
        if self._plain:
            data, self._plain = bytes(self._plain), self._plain[:0]
            return data
        while True:  # to the end of what is there: it may be a piece of a record
            if self._opener.raw:  # nobody who expects a payload asks like this
                raise WireError("bytes that nothing authenticates, where none are due")
            opened = self._read_records()
            if opened != b"":
                return opened or b""

    def recv_into(self, place: bytearray | memoryview) -> int:
        view = memoryview(place)
        have = 0
        try:
            while have < len(view):
                if self._plain:
                    count = min(len(self._plain), len(view) - have)
                    view[have : have + count] = self._plain[:count]
                    self._plain = self._plain[count:]
                elif self._opener.raw:
                    count = self._read_raw(view[have:])
                elif have and self._dry:
                    break
                else:
                    data = self._read_records()
                    if data is None:
                        break
                    self._plain = memoryview(data)
                    continue
                if not count:
                    break
                have += count
        except OSError:
            if not have:
                raise
        return have  # the next call finds the connection's end

    def _read_records(self) -> bytes | None:
        """Read once; the bytes that are complete with it, perhaps none; None at the end."""
        data, self._early = self._early, b""
        if not data:
            data = self._sock.recv(self._chunk)
            if not data:
                return None
            self._dry = len(data) < self._chunk
            # What stands in front of a raw payload is little, and that goes where it belongs without us.
            opened = self._opener.feed(data)
            self._chunk = _IDLE_CHUNK if self._dry or self._opener.raw else _CHUNK
            return opened
        return self._opener.feed(data)

    def _read_raw(self, place: memoryview) -> int:
        """Read some of a raw payload; 0 at the end."""
        opener = self._opener
        count = opener.take_raw(place)
        if not count:
            count = self._sock.recv_into(place[: opener.raw])
            opener.raw -= count
        if not opener.raw:
            self._plain = memoryview(opener.feed(b""))  # what came behind it
        return count

    # Writing.

    def send(self, data: Bytes, flags: int = 0) -> int:
        if self._leaving or self._raw or len(data) > _SMALL:
            return self.sendmsg((data,), (), flags)
        record = self._sealer.seal(data)  # nearly always: no reason to go the long way
        try:
            sent = self._sock.send(record, flags)
        except OSError:  # it may be offered again, and it was counted: it leaves as it is, or nothing does
            self._leaving, self._owed = memoryview(record), len(data)
            raise
        if sent < len(record):
            self._leaving, self._owed = memoryview(record)[sent:], len(data)
            raise BlockingIOError
        return len(data)

    def send_raw(self, header: Bytes, payload: memoryview, flags: int = 0) -> int:
        """Send a header that is authenticated, and a payload that is not; returns how many bytes of both.

        Only while nothing waits to be sent. As usual the caller offers what is left once more, by `send` or
        `sendmsg`, the same bytes.
        """
        records = self._sealer.seal(header) + self._sealer.announce(len(payload))
        self._raw = len(payload)
        try:
            sent = self._sock.sendmsg((records, payload), (), flags)
        except OSError:
            self._leaving, self._owed = memoryview(records), len(header)
            raise
        if sent < len(records):
            self._leaving, self._owed = memoryview(records)[sent:], len(header)
            raise BlockingIOError
        self._raw -= sent - len(records)
        return len(header) + sent - len(records)

    def sendmsg(self, buffers: Sequence[Bytes], ancillary: Sequence[Any] = (), flags: int = 0) -> int:
        assert not ancillary
        if not self._leaving and not self._raw and sum(map(len, buffers)) <= _SMALL:
            return self.send(b"".join(buffers), flags)
        sent = self._send_owed(flags)
        if self._raw:
            try:
                count = self._sock.sendmsg(_slice(buffers, sent, self._raw), (), flags)
            except OSError:
                if not sent:
                    raise
                return sent
            self._raw -= count
            sent += count
            if self._raw:
                return sent
        return self._send_records(buffers, sent, flags)

    def _wrap(self, piece: Bytes) -> bytes:
        return self._sealer.seal(piece)

    def setsockopt(self, level: int, name: int, value: Any) -> None:
        """Set an option; but a number of bytes wakes a reader only of a raw payload."""
        if (level, name) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            value = max(1, min(value, 0 if self.pending() else self._opener.raw))
        self._sock.setsockopt(level, name, value)


def _slice(buffers: Sequence[Bytes], skip: int, most: int) -> list[memoryview]:
    """`most` bytes behind the first `skip`."""
    pieces = []
    for buffer in buffers:
        view = memoryview(buffer)[skip : skip + most]
        skip = max(0, skip - len(buffer))
        most -= len(view)
        if view:
            pieces.append(view)
    return pieces
