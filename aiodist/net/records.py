"""The common part of sockets with a layer of records on them; `secure` (TLS) and `sealed` are the two.

They have the calls of a non-blocking socket that this package makes. What was made into a record must leave
as it is. So bytes count as sent once their records are in the socket; a caller that is told fewer, or
`BlockingIOError`, offers the same bytes again when the socket is writable, as it has to anyway. After any
other error of the socket it may do so, too; bytes that were sent or read before the error are counted first.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

_JOINED = 64 << 10  # up to here header and payload become one piece
_PIECE = 256 << 10  # bytes that become a record, or several, at a time
_NOTHING = memoryview(b"")

Bytes = bytes | bytearray | memoryview


class RecordSocket(ABC):
    """Records over a connected, non-blocking stream socket, which it owns."""

    def __init__(self, sock: socket.socket) -> None:
        self.family = sock.family
        self._sock = sock
        self._leaving = _NOTHING  # records that are not in the socket yet
        self._owed = 0  # so many bytes of what the caller offers next are in there

    @abstractmethod
    def _wrap(self, piece: Bytes) -> bytes:
        """The records of a piece, in the order of these calls."""

    @abstractmethod
    def pending(self) -> bool:
        """Whether something was read from the socket that `recv_into` has not handed on."""

    # Reading.

    @abstractmethod
    def recv(self, nbytes: int) -> bytes:
        """Receive what has arrived, `nbytes` and beyond; b'' at the end. `BlockingIOError` for nothing."""

    @abstractmethod
    def recv_into(self, place: bytearray | memoryview) -> int:
        """Fill `place` with what has arrived; 0 at the end. `BlockingIOError` for nothing."""

    def recvmsg_into(self, places: Sequence[memoryview]) -> tuple[int]:
        """Fill several places, as `recv_into`; the first element of what a socket returns."""
        total = 0
        for place in places:
            try:
                count = self.recv_into(place)
            except OSError:
                if total:
                    break
                raise
            total += count
            if count < len(place):
                break
        return (total,)

    # Writing.

    def send(self, data: Bytes, flags: int = 0) -> int:
        """Send bytes; returns how many. `BlockingIOError` for none: offer the same again."""
        return self.sendmsg((data,), (), flags)

    def sendmsg(self, buffers: Sequence[Bytes], ancillary: Sequence[Any] = (), flags: int = 0) -> int:
        """Send the buffers one after the other, as `send`. Nothing ancillary can be sent."""
        assert not ancillary
        return self._send_records(buffers, self._send_owed(flags), flags)

    def _send_owed(self, flags: int) -> int:
        """Have what is made leave; how many of the bytes that are offered now were in it."""
        if self._leaving:
            self._flush(flags)
        sent, self._owed = self._owed, 0
        return sent

    def _send_records(self, buffers: Sequence[Bytes], sent: int, flags: int) -> int:
        """Make records of all but the first `sent` bytes, which have left, and send them; how many have."""
        for piece in _pieces(buffers, sent):
            self._leaving, self._owed = memoryview(self._wrap(piece)), len(piece)
            try:
                self._flush(flags)
            except OSError:
                if not sent:
                    raise
                break
            sent += self._owed
            self._owed = 0
        return sent

    def _flush(self, flags: int) -> None:
        while self._leaving:
            self._leaving = self._leaving[self._sock.send(self._leaving, flags) :]

    # What a socket has besides.

    def fileno(self) -> int:
        """The descriptor to watch; -1 once closed."""
        return self._sock.fileno()

    def setsockopt(self, level: int, name: int, value: Any) -> None:
        """Set an option; but that a number of bytes wakes a reader means nothing where records are read."""
        if (level, name) != (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            self._sock.setsockopt(level, name, value)

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        """An option's bytes."""
        return self._sock.getsockopt(level, name, size)

    def getsockname(self) -> Any:
        """The address of this end."""
        return self._sock.getsockname()

    def getpeername(self) -> Any:
        """The address of the other end."""
        return self._sock.getpeername()

    def close(self) -> None:
        """Close the connection at once: the protocol inside has said goodbye, or did not want to."""
        self._sock.close()


def _pieces(buffers: Sequence[Bytes], skip: int) -> list[Bytes]:
    """The pieces to make records of, without the first `skip` bytes."""
    total = sum(len(buffer) for buffer in buffers) - skip
    if total <= _JOINED:
        joined = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
        return [joined[skip:]] if total > 0 else []
    pieces: list[Bytes] = []
    for buffer in buffers:
        view = memoryview(buffer)[skip:]
        skip = max(0, skip - len(buffer))
        pieces += [view[at : at + _PIECE] for at in range(0, len(view), _PIECE)]
    return pieces
