"""Authenticated records: what one side seals the other opens, in that order, once, and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import Tampered, WireError
from aiodist.net.wire import seal
from aiodist.net.wire.seal import RECORD, TAG, Opener, Sealer

KEY = bytes(range(32))
pieces = st.lists(st.one_of(st.binary(min_size=1, max_size=40), st.integers(1, 40)), max_size=8)


def sent(items: Iterable[bytes | int]) -> bytes:
    """A stream: sealed bytes, and raw payloads of 'r' of so many bytes."""
    sealer = Sealer(KEY)
    return b"".join(
        sealer.announce(item) + b"r" * item if isinstance(item, int) else sealer.seal(item) for item in items
    )


def opened(stream: bytes, cuts: Iterable[int] = ()) -> bytes:
    """All of a stream, as it comes in pieces."""
    opener = Opener(KEY)
    got = bytearray()
    sizes = iter(cuts)
    while stream:
        size = next(sizes, len(stream))
        piece, stream = stream[:size], stream[size:]
        got += opener.feed(piece)
        while opener.pending:
            place = memoryview(bytearray(7))
            got += place[: opener.take_raw(place)]
            if not opener.raw:
                got += opener.feed(b"")
    return bytes(got)


def plain(items: Iterable[bytes | int]) -> bytes:
    return b"".join(b"r" * item if isinstance(item, int) else item for item in items)


@given(pieces, st.lists(st.integers(1, 50)))
def test_any_split_of_the_bytes_gives_the_same(items: list[bytes | int], cuts: list[int]) -> None:
    assert opened(sent(items), cuts) == plain(items)


def test_a_raw_payload_may_be_read_from_elsewhere() -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    assert opener.feed(sealer.seal(b"header") + sealer.announce(1000) + b"r" * 10) == b"header"
    before = (opener.raw, opener.pending)
    place = memoryview(bytearray(1000))
    assert opener.take_raw(place) == 10
    assert (before, (opener.raw, opener.pending)) == ((1000, True), (990, False))
    opener.raw -= 990  # straight from the socket
    assert opener.feed(sealer.seal(b"behind")) == b"behind"


@given(pieces.filter(bool), st.data())
def test_nothing_altered_is_opened(items: list[bytes | int], data: st.DataObject) -> None:
    """A byte changed anywhere but in a raw payload: what comes out is what stood before it."""
    stream = bytearray(sent(items))
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] ^= data.draw(st.integers(1, 255))
    try:
        got = opened(bytes(stream))
    except Tampered:
        return
    whole = plain(items)
    raw = any(isinstance(item, int) for item in items)
    assert whole.startswith(got) or (raw and len(got) == len(whole))


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=2, max_size=5, unique=True), st.data())
def test_records_have_one_order(items: list[bytes], data: st.DataObject) -> None:
    sealer = Sealer(KEY)
    made = [sealer.seal(item) for item in items]
    other = data.draw(
        st.lists(st.sampled_from(made), min_size=1, max_size=6).filter(lambda o: o != made[: len(o)])
    )
    with pytest.raises(Tampered):
        opened(b"".join(other))


def test_another_key_opens_nothing() -> None:
    for record in (Sealer(bytes(32)).seal(b"x"), Sealer(bytes(32)).announce(5)):
        with pytest.raises(Tampered, match="the data were altered on the network path"):
            opened(record)
    assert issubclass(Tampered, WireError)


def test_a_raw_payload_cannot_be_passed_off_as_sealed() -> None:
    """Nor the other way round, nor another length."""
    for size in (5, 5 | seal._RAW, 6 | seal._RAW):
        stream = bytearray(Sealer(KEY).announce(7) + b"r" * 7)
        struct.pack_into("<I", stream, 0, size)
        with pytest.raises(Tampered):
            opened(bytes(stream) + bytes(30))


def test_records_are_bounded() -> None:
    opener = Opener(KEY)
    data = bytes(RECORD)
    assert opener.feed(Sealer(KEY).seal(data)) == data
    with pytest.raises(Tampered):
        opener.feed(struct.pack("<I", RECORD + 1))
    assert len(Sealer(KEY).seal(b"")) == 4 + TAG
    assert opener.held <= RECORD + 4 + TAG
