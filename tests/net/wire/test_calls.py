"""Frames of calls: cut out of a stream in any pieces as they were put in, and nonsense is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.net.wire import calls
from aiodist.net.wire.calls import Frames, Says, frame, grant, read_grant, read_request, request, text_frame

FRAMES = st.lists(
    st.tuples(
        st.sampled_from(Says),
        st.integers(0, (1 << 64) - 1),
        st.binary(max_size=20) | st.integers(25_000, calls.PIECE).map(lambda size: b"x" * size),
    ),
    max_size=6,
)


@given(sent=FRAMES, pieces=st.lists(st.integers(500, 99_999), min_size=1, max_size=8))
def test_frames_come_out_as_they_went_in(sent: list[tuple[Says, int, bytes]], pieces: list[int]) -> None:
    stream = b"".join(frame(*one) for one in sent)
    parser, found, at, turn = Frames(), [], 0, 0
    while at < len(stream):
        size = pieces[turn % len(pieces)]
        found += [(kind, number, bytes(body)) for kind, number, body in parser.feed(stream[at : at + size])]
        at, turn = at + size, turn + 1
    assert found == sent


@given(
    left=st.floats(0, 1e9) | st.just(math.inf),
    name=st.text("aé", max_size=60),
    payload=st.binary(max_size=99),
)
def test_requests(left: float, name: str, payload: bytes) -> None:
    data = request(Says.CALL, 7, left, name.encode(), payload)
    [(kind, number, body)] = Frames().feed(data)
    assert (kind, number) == (Says.CALL, 7)
    assert body == calls.request_head(left, name.encode()) + payload
    assert read_request(body) == (left, name, payload)


def test_the_payload_of_a_large_request_is_not_copied() -> None:
    body = bytearray(calls.request_head(1.0, b"name") + b"x" * calls.PIECE)
    left, name, payload = read_request(body)
    assert (left, name) == (1.0, "name")
    assert isinstance(payload, memoryview)
    assert payload.obj is body


def test_grants_and_texts() -> None:
    [(kind, number, body)] = Frames().feed(grant(3, 1 << 40))
    assert (kind, number, read_grant(body)) == (Says.GRANT, 3, 1 << 40)
    [(kind, number, body)] = Frames().feed(text_frame(Says.REFUSED, 4, "é" * 9000))
    assert (kind, number, len(body)) == (Says.REFUSED, 4, calls.MAX_TEXT)
    assert set(calls.read_text(body)) == {"é"}


@given(st.binary(min_size=13, max_size=60))
def test_nonsense_is_refused_or_waited_for(data: bytes) -> None:
    try:
        Frames().feed(data)
    except WireError:
        pass


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 9,
        request(Says.CALL, 1, 1.0, b"name", b"")[13:-1],
        request(Says.CALL, 1, math.nan, b"", b"")[13:],
    ],
)
def test_requests_that_contradict_themselves(body: bytes) -> None:
    with pytest.raises(WireError):
        read_request(body)


def test_what_is_too_large_is_refused_by_its_head() -> None:
    with pytest.raises(WireError, match="which calls do not have"):
        Frames().feed(calls.head(Says.RESULT, 1, calls.PIECE + 1000))
    with pytest.raises(WireError, match="kind 99"):
        Frames().feed(b"\0\0\0\0" + bytes([99]) + b"\0" * 8)
    with pytest.raises(WireError):
        read_grant(b"\0")


def test_byte_by_byte() -> None:
    stream = frame(Says.CANCEL, 1) + frame(Says.PART, 2, b"ab") + frame(Says.RESULT, 3, b"c" * 60_000)
    parser, found = Frames(), []
    for at in range(200):
        found += parser.feed(stream[at : at + 1])
    found += parser.feed(stream[200:-1])
    assert found == [(Says.CANCEL, 1, b""), (Says.PART, 2, b"ab")]
    assert parser.feed(stream[-1:]) == [(Says.RESULT, 3, b"c" * 60_000)]
