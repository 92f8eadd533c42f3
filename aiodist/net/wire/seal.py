"""Authentication of what follows a handshake on a connection without TLS. Pure.

Each direction of a connection has a key of its own (`Handshake.keys`). What is sent travels in records:

    sealed   u32 size | data | tag      1 to `RECORD` bytes of data
    raw      u32 size, high bit set | tag, then so many bytes that no tag covers: tensors

A tag is 16 bytes of keyed BLAKE2b over all that was sealed in this direction so far, sizes included. So it
counts: bytes that were changed, put in, left out, repeated, or taken from another connection or direction all
give another tag, and the first wrong one ends the connection. That nothing is missing at the end is for the
protocols inside to see: each says goodbye, sealed.

Nothing is encrypted. Little-endian.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from hmac import compare_digest

from aiodist.base.errors import Tampered, WireError

RECORD = 256 * 1024
"""Bytes of data in one record, at most: what a receiver holds back until it has seen the tag."""

TAG = 16
"""Bytes of a tag."""

_SIZE = struct.Struct("<I")
_HEAD = _SIZE.size
_AROUND = _HEAD + TAG
_RAW = 1 << 31

Bytes = bytes | bytearray | memoryview


class Sealer:
    """The sending end of one direction.

    Args:
        key: 32 bytes, for this direction of this connection alone.
    """

    __slots__ = ("_mac",)

    def __init__(self, key: bytes) -> None:
        self._mac = blake2b(key=key, digest_size=TAG)

    def seal(self, data: Bytes) -> bytes:
        """The record of 1 to `RECORD` bytes. Records are sent in the order in which they are made."""
        body = _SIZE.pack(len(data)) + data
        self._mac.update(body)
        return body + self._mac.copy().digest()

    def announce(self, nbytes: int) -> bytes:
        """The header of so many raw bytes, fewer than 2 GiB."""
        head = _SIZE.pack(nbytes | _RAW)
        self._mac.update(head)
        return head + self._mac.copy().digest()


class Opener:
    """The receiving end of one direction.

    Args:
        key: the sender's.

    Attributes:
        raw: bytes that are still to come of those that no tag covers. While it is not 0 they are taken by
            `take_raw`, and from the connection; then `feed` goes on.
    """

    __slots__ = ("_behind", "_inbox", "_mac", "_need", "raw")

    def __init__(self, key: bytes) -> None:
        self.raw = 0
        self._mac = blake2b(key=key, digest_size=TAG)
        self._inbox = bytearray()  # the beginning of a record
        self._need = 0  # bytes in it from which on it is worth looking
        self._behind: Bytes = b""  # what came behind the size of raw bytes: these, and perhaps more

    @property
    def pending(self) -> bool:
        """Whether there are raw bytes for `take_raw`."""
        return bool(self.raw and self._behind)

    @property
    def held(self) -> int:
        """Bytes that wait for what belongs to them."""
        return len(self._inbox) + len(self._behind)

    def feed(self, data: bytes) -> bytes:
        """The bytes of all records that are complete with `data`, up to the next raw ones. Once those have
        all been taken, b"" is fed for what came behind them.

        Raises:
            Tampered: they are not what the peer has sent; nothing may be taken of this connection any more.
            WireError: the peer sent a record of nothing, of which it could send any number.
        """
        wire: Bytes = data
        if self._inbox:
            self._inbox += data
            if len(self._inbox) < self._need:
                return b""
            wire, self._inbox = self._inbox, bytearray()
        elif self.raw or self._behind:
            wire = b"".join((self._behind, data)) if data else self._behind
            self._behind = b""
            if self.raw:
                self._behind = wire
                return b""
        size = len(wire) - _AROUND
        if size > 0 and _SIZE.unpack_from(wire)[0] == size:
            return bytes(self._opened(wire, 0, size))  # nearly always exactly one
        return self._parse(memoryview(wire))

    def _parse(self, wire: memoryview) -> bytes:
        parts: list[Bytes] = []
        at, end = 0, len(wire)
        while end - at >= _HEAD:
            (size,) = _SIZE.unpack_from(wire, at)
            sealed = 0 if size & _RAW else size
            if sealed > RECORD:
                raise Tampered
            if end - at < _AROUND + sealed:
                self._need = _AROUND + sealed
                break
            parts.append(self._opened(wire, at, sealed))
            if not size & ~_RAW:
                raise WireError("a record of 0 bytes")
            at += _AROUND + sealed
            if size & _RAW:
                self.raw, self._behind = size & ~_RAW, wire[at:]
                return b"".join(parts)
        else:
            self._need = _HEAD
        self._inbox += wire[at:]
        return b"".join(parts)

    def take_raw(self, place: memoryview) -> int:
        """Move raw bytes that came with others to `place`; returns how many."""
        count = min(len(place), self.raw, len(self._behind))
        if count:
            place[:count] = self._behind[:count]
            self._behind = self._behind[count:]
            self.raw -= count
        return count

    def _opened(self, wire: Bytes, at: int, size: int) -> Bytes:
        """The data of the record at `at`, once its tag was found right."""
        end = at + _HEAD + size
        self._mac.update(wire[at:end])
        if not compare_digest(self._mac.copy().digest(), wire[end : end + TAG]):
            raise Tampered
        return wire[at + _HEAD : end]
