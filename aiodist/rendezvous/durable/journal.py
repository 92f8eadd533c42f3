"""Bytes of a store's files: a header, then frames. No I/O.

    header   72 bytes: 'AIODISTJ', version, kind, number, instance of the store, salt, CRC-32
    frame    mark, u32 size, u32 CRC-32 of salt, size and payload; then the payload

    payload  msgpack of a list of changes: one commit, written and synced as a whole
             empty: all before this is on the disk
             nil: the file is complete

A log takes one commit after the other, and each is on the disk before the next is written. So a frame that
is not whole can only be the last; then its writer crashed while writing it, nobody was told that it was done,
and it may be cut off. A frame that is not whole and has a whole one anywhere behind it was whole once: that
is damage, and nothing of the file can be believed. The empty frame that follows each commit makes this also
true of the last commit; it is written once the commit is on the disk, and may itself be lost.

The salt is random for each file: bytes that a client stores cannot look like a frame, nor can frames of
another file.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

VERSION = 1
SALT_BYTES = 16
INSTANCE_BYTES = 16
_MAGIC = b"AIODISTJ"
_HEADER = struct.Struct(f"<8sHH4xQ{INSTANCE_BYTES}s{SALT_BYTES}s12x")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECK.size
_MARK = b"\xa9jr\n"
_FRAME = struct.Struct("<4sII")
_SIZE = struct.Struct("<I")
_NIL = b"\xc0"


class DamageError(Exception):
    """A file is not what was written.

    Args:
        offset: of the first byte that cannot be believed.
        message: what is wrong there.
    """

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(f"{message} at byte {offset}")
        self.offset = offset
        self.message = message


class FileKind(enum.IntEnum):
    """Kinds of a file."""

    log = 1
    snapshot = 2


@dataclass(frozen=True)
class JournalHeader:
    """The beginning of a file.

    Args:
        kind: what the file is.
        number: of the log, or of the log that goes on where the snapshot ends.
        instance: the store that it belongs to.
        salt: 16 random bytes.
    """

    kind: FileKind
    number: int
    instance: bytes
    salt: bytes

    def encode(self) -> bytes:
        """The record's bytes in the journal."""
        packed = _HEADER.pack(_MAGIC, VERSION, self.kind, self.number, self.instance, self.salt)
        return packed + _CHECK.pack(zlib.crc32(packed))

    @staticmethod
    def decode(data: bytes) -> JournalHeader:
        """Read one from the first bytes of a file; `DamageError` unless they are one."""
        if len(data) < HEADER_BYTES:
            raise DamageError(0, "the header is cut off")
        packed = bytes(data[: _HEADER.size])
        magic, version, kind, number, instance, salt = _HEADER.unpack(packed)
        if magic != _MAGIC:
            raise DamageError(0, "no header of a store's file")
        if _CHECK.unpack_from(data, _HEADER.size)[0] != zlib.crc32(packed):
            raise DamageError(0, "the header's checksum is wrong")
        if version != VERSION:
            raise DamageError(0, f"it has version {version}, this aiodist writes {VERSION};")
        return JournalHeader(FileKind(kind), number, instance, salt)


@dataclass(frozen=True)
class JournalFrame:
    """A whole frame: its changes, and where it ends. `changes` is None where the file is complete."""

    changes: list[Any] | None
    begin: int
    end: int


class Codec:
    """The frames of one file."""

    def __init__(self, salt: bytes) -> None:
        self._seed = zlib.crc32(salt)

    def commit(self, changes: Sequence[Sequence[Any]]) -> bytes:
        """The frame of a commit; never empty."""
        payload: bytes = msgpack.packb(changes)
        return self._frame(payload)

    def mark(self) -> bytes:
        """The frame that says that all before it is on the disk."""
        return self._frame(b"")

    def complete(self) -> bytes:
        """The last frame of a file to which nothing will be added."""
        return self._frame(_NIL)

    def _frame(self, payload: bytes) -> bytes:
        return _FRAME.pack(_MARK, len(payload), self._check(payload)) + payload

    def _check(self, payload: bytes | memoryview) -> int:
        return zlib.crc32(payload, zlib.crc32(_SIZE.pack(len(payload)), self._seed))

    def _whole(self, data: memoryview, at: int) -> memoryview | None:
        """The payload of a whole frame at an offset."""
        if len(data) - at < _FRAME.size:
            return None
        mark, size, check = _FRAME.unpack_from(data, at)
        begin = at + _FRAME.size
        if mark != _MARK or size > len(data) - begin:
            return None
        payload = data[begin : begin + size]
        return payload if self._check(payload) == check else None

    def frames(self, data: memoryview, *, may_tear: bool) -> Iterator[JournalFrame]:
        """The frames of a file, in order, up to a torn one.

        Args:
            data: the whole file.
            may_tear: it may end with a frame that is not whole, which is left out then: compare the `end` of
                the last frame with the length of the file.

        Raises:
            DamageError: a frame is not whole, and it is not the last or must not be torn.
        """
        at = HEADER_BYTES
        while at < len(data):
            payload = self._whole(data, at)
            if payload is None:
                if not may_tear:
                    raise DamageError(at, "a record is damaged or cut off")
                if self._any_behind(data, at):
                    raise DamageError(at, "a record is damaged, and whole ones follow it,")
                return
            end = at + _FRAME.size + len(payload)
            yield JournalFrame(_changes(payload, at), at, end)
            at = end

    def _any_behind(self, data: memoryview, at: int) -> bool:
        step = 1 << 20
        for begin in range(at + 1, len(data), step):
            window = bytes(data[begin : begin + step + len(_MARK) - 1])
            found = window.find(_MARK)
            while found >= 0:
                if self._whole(data, begin + found) is not None:
                    return True
                found = window.find(_MARK, found + 1)
        return False


def _changes(payload: memoryview, at: int) -> list[Any] | None:
    if not payload:
        return []
    try:
        changes = msgpack.unpackb(payload, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError):
        raise DamageError(at, "a record cannot be read") from None
    if changes is not None and type(changes) is not list:
        raise DamageError(at, "a record holds something else")
    return changes
