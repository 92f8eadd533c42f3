"""The frame header: what is packed is parsed, and nonsense is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.net.wire.frame import (
    HEADER,
    MESSAGE_LIMIT,
    PAYLOAD_LIMIT,
    Frame,
    Type,
    pack,
    pack_eager,
    parse,
    parse_eager,
    payload_bytes,
)

WITH_BYTES = (Type.EAGER, Type.DATA, Type.MAPPED, Type.LENT)


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


@given(
    kind=st.sampled_from(Type),
    key=st.tuples(unsigned(64), unsigned(32), unsigned(64), unsigned(32)),
    nbytes=st.integers(1, PAYLOAD_LIMIT),
    offset=st.integers(0, 1 << 40),
    rest=st.integers(0, 1 << 40),
    word=unsigned(64),
    signature=st.binary(min_size=32, max_size=32),
    start=st.integers(0, 9),
)
def test_round_trip(
    kind: Type,
    key: tuple[int, int, int, int],
    nbytes: int,
    offset: int,
    rest: int,
    word: int,
    signature: bytes,
    start: int,
) -> None:
    total = offset + nbytes + rest
    if kind is Type.EAGER:
        offset, total = 0, nbytes
    elif kind not in WITH_BYTES:
        nbytes = 0
    packed = pack(kind, *key, nbytes=nbytes, offset=offset, total=total, word=word, signature=signature)
    assert len(packed) == HEADER
    frame = parse(bytes(start) + packed + b"next", start)
    assert frame == Frame(kind, *key, nbytes, offset, total, word, signature)
    assert payload_bytes(frame) == (0 if kind in (Type.MAPPED, Type.LENT) else nbytes)


@given(st.binary(min_size=HEADER, max_size=HEADER))
def test_any_bytes_parse_or_are_refused(raw: bytes) -> None:
    try:
        frame = parse(raw)
    except WireError:
        return
    assert frame.type in set(Type)
    assert frame.offset + frame.nbytes <= frame.total <= MESSAGE_LIMIT
    assert frame.nbytes <= PAYLOAD_LIMIT


@pytest.mark.parametrize(
    "raw",
    [
        bytes(HEADER),
        pack(0),
        pack(len(Type) + 1),
        *(pack(Type.READY)[:at] + b"\1" + pack(Type.READY)[at + 1 :] for at in (1, 2, 3)),
        pack(Type.READY)[:56] + b"\1" + pack(Type.READY)[57:],
        pack(Type.OFFER, total=MESSAGE_LIMIT + 1),
        pack(Type.DATA, nbytes=PAYLOAD_LIMIT + 1, total=1 << 30),
        pack(Type.DATA, nbytes=9, offset=8, total=16),
        pack(Type.DATA, nbytes=1, offset=(1 << 64) - 1, total=1 << 20),
        pack(Type.DATA, total=16),
        pack(Type.MAPPED),
        pack(Type.EAGER, nbytes=8, total=16),
        pack(Type.EAGER, total=16),
        *(pack(kind, nbytes=1, total=1) for kind in Type if kind not in WITH_BYTES),
    ],
)
def test_nonsense_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        parse(raw)


def test_messages_of_no_bytes() -> None:
    assert parse(pack(Type.EAGER)).total == 0
    assert parse(pack(Type.DATA)).nbytes == 0


@given(
    key=st.tuples(unsigned(64), unsigned(32), unsigned(64)),
    payload=st.binary(max_size=99),
    more=st.binary(max_size=9),
    signature=st.binary(min_size=32, max_size=32),
)
def test_an_eager_frame_is_packed_and_parsed_as_any_other(
    key: tuple[int, int, int], payload: bytes, more: bytes, signature: bytes
) -> None:
    size = len(payload)
    header = pack_eager(*key, size, signature)
    assert header == pack(Type.EAGER, *key, nbytes=size, total=size, signature=signature)
    record = memoryview(header + payload + more)
    assert parse_eager(record) == (*key, 0, size, signature)


@pytest.mark.parametrize(
    "record",
    [
        pack(Type.EAGER, nbytes=9, total=9) + bytes(8),
        pack(Type.DATA, nbytes=9, total=9) + bytes(9),
        pack(Type.OFFER, total=9),
        b"\x01\x01" + pack(Type.EAGER)[2:],
        b"\xff" + pack(Type.EAGER)[1:],
        pack(Type.EAGER)[:56] + b"\x01" + pack(Type.EAGER)[57:],
        pack(Type.DATA, nbytes=1, offset=1, total=2)[:1].replace(b"\x04", b"\x01")
        + pack(Type.DATA, nbytes=1, offset=1, total=2)[1:]
        + b"x",
    ],
)
def test_no_other_record_is_taken_for_an_eager_frame(record: bytes) -> None:
    with pytest.raises(WireError):
        parse_eager(memoryview(record))
