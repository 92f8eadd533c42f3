"""The frames of a data link: a fixed header of 96 bytes, then the payload, if any.

    offset  bytes  field
         0      1  type
         1      3  (zero)
         4      4  stream
         8      8  context
        16      8  seq
        24      4  part
        28      4  nbytes     payload bytes of this frame
        32      8  offset     where they belong in the message
        40      8  total      bytes of the whole message
        48      8  word       by type: see `Frame`
        56      8  (zero)
        64     32  signature

Little-endian. Everything is validated before anybody acts on it; nonsense raises `WireError`.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from aiodist.base.errors import WireError

HEADER = 96
"""Bytes of a frame header."""

PAYLOAD_LIMIT = 1 << 20
"""Bytes of the largest payload of one frame."""

MESSAGE_LIMIT = 1 << 48
"""Bytes of the largest message; a larger figure on the wire is nonsense."""

NO_SIGNATURE = bytes(32)
_ZEROS = bytes(3)

SEQ_AT, NBYTES_AT, SIGNATURE_AT = 16, 28, 64
"""Where a header has these fields."""

_HEADER = struct.Struct("<B3sIQQIIQQQQ32s")
_pack = _HEADER.pack
_unpack_from = _HEADER.unpack_from
assert _HEADER.size == HEADER


class Type(enum.IntEnum):
    """The kind of a frame.

    The sender of a channel says EAGER, OFFER, DATA, MAPPED, BLOCKS, LENT; the receiver READY, CREDIT,
    RELEASE, RETURNED; both say RING and GOODBYE.
    """

    EAGER = 1  # a whole message; the receiver may have no place for it yet
    OFFER = 2  # a message of `total` bytes waits for READY
    READY = 3  # there is a place for the message, of `total` bytes
    DATA = 4  # a fragment of a message that is READY
    MAPPED = 5  # the same, but the bytes lie in the sender's segment at `word`; no payload
    CREDIT = 6  # `word` bytes of the context's eager budget are free again
    RELEASE = 7  # the blocks in the bit set `word` are free again
    BLOCKS = 8  # the sender's blocks begin at `word` of its segment, from the next MAPPED on
    GOODBYE = 9  # nothing follows; this end is closed on purpose
    RING = 10  # there is a ring of `total` bytes at `word` of this end's segment; 0: see `transport.rings`
    LENT = 11  # as DATA, but the bytes lie in the sender's memory at the address `word`; no payload
    RETURNED = 12  # `word` LENT fragments were read since the beginning, or passed over


class Word(enum.IntFlag):
    """Flags of READY and OFFER in `word`, because neither side remembers all that the other says ahead."""

    ANSWER = 1  # READY: to a message that was offered; where there is none, it is nothing to remember
    AGAIN = 2  # READY: the offer may have been forgotten; if the message is of another size, offer it again
    FORGOT = 4  # OFFER: a READY may have been forgotten; if there was one for this message, say it again


class Frame(NamedTuple):
    """A parsed header.

    Args:
        type: see `Type`; kept as a plain int, because this is made for every frame.
        nbytes: payload bytes that follow the header.
        offset: of the payload in its message.
        total: bytes of the whole message; for CREDIT those that are free again in all contexts together; for
            RING those of the ring.
        word: for MAPPED, BLOCKS and RING an offset in the segment, for LENT an address, for CREDIT bytes, for
            RELEASE a bit set of blocks, for RETURNED a count, for READY and OFFER a `Word`.
        signature: 32 bytes; given with EAGER, OFFER, DATA, MAPPED and LENT.
    """

    type: int
    context: int
    stream: int
    seq: int
    part: int
    nbytes: int
    offset: int
    total: int
    word: int
    signature: bytes


_EAGER, _DATA = int(Type.EAGER), int(Type.DATA)
_TYPES = frozenset(int(kind) for kind in Type)
_ELSEWHERE = frozenset((int(Type.MAPPED), int(Type.LENT)))  # where the bytes do not follow the header
_WITHOUT_PAYLOAD = frozenset(
    int(kind) for kind in Type if kind not in (Type.EAGER, Type.DATA, Type.MAPPED, Type.LENT)
)


def pack(
    kind: int,
    context: int = 0,
    stream: int = 0,
    seq: int = 0,
    part: int = 0,
    *,
    nbytes: int = 0,
    offset: int = 0,
    total: int = 0,
    word: int = 0,
    signature: bytes = NO_SIGNATURE,
) -> bytes:
    """A frame's header. The arguments are `Frame`'s.

    Raises:
        struct.error: a field does not fit, which is the caller's mistake.
    """
    return _pack(kind, _ZEROS, stream, context, seq, part, nbytes, offset, total, word, 0, signature)


def pack_eager(context: int, stream: int, seq: int, nbytes: int, signature: bytes) -> bytes:
    """The header of an EAGER frame of part 0."""
    return _pack(_EAGER, _ZEROS, stream, context, seq, 0, nbytes, 0, nbytes, 0, 0, signature)


def parse(buffer: bytes | bytearray | memoryview, start: int = 0) -> Frame:
    """The header at `start` of `buffer`, which holds at least HEADER bytes from there.

    Raises:
        WireError: it is not a frame of this protocol.
    """
    kind, zero, stream, context, seq, part, nbytes, offset, total, word, zeros, signature = _unpack_from(
        buffer, start
    )
    if kind not in _TYPES or zero != _ZEROS or zeros:
        raise WireError(f"a frame of unknown type {kind}", hint="Is every rank's aiodist the same version?")
    if nbytes > PAYLOAD_LIMIT or total > MESSAGE_LIMIT or offset + nbytes > total:
        raise WireError(f"a {Type(kind).name} frame of {nbytes} bytes at {offset} of {total}")
    if nbytes and kind in _WITHOUT_PAYLOAD:
        raise WireError(f"a {Type(kind).name} frame with a payload of {nbytes} bytes")
    if kind == _EAGER and nbytes != total:
        raise WireError(f"an EAGER frame with {nbytes} of {total} bytes")
    if not nbytes and (kind in _ELSEWHERE or (kind == _DATA and total)):
        raise WireError(f"a {Type(kind).name} frame without bytes in a message of {total}")
    return Frame(kind, context, stream, seq, part, nbytes, offset, total, word, signature)


def parse_eager(record: memoryview) -> tuple[int, int, int, int, int, bytes]:
    """The context, stream, seq, part, nbytes and signature of an EAGER frame whose payload follows.

    Raises:
        WireError: it is not one, or not all of it is there.
    """
    kind, zero, stream, context, seq, part, nbytes, offset, total, _, zeros, signature = _unpack_from(record)
    whole = nbytes == total <= PAYLOAD_LIMIT and HEADER + nbytes <= len(record)
    if kind != _EAGER or zero != _ZEROS or zeros or offset or not whole:
        frame = parse(record)  # which says what is wrong with its header
        raise WireError(
            f"a {Type(frame.type).name} frame of {frame.nbytes} bytes in a record of {len(record)}"
        )
    return context, stream, seq, part, nbytes, signature


def payload_bytes(frame: Frame) -> int:
    """The number of bytes that follow this header on the connection."""
    return 0 if frame.type in _ELSEWHERE else frame.nbytes
