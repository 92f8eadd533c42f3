"""The store's messages: any split of the stream, bounded, and nothing but messages gets through."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.net.wire import messages
from aiodist.net.wire.messages import Encoder, FrameParser, Status

ints = st.integers(0, 2**63 - 1)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


@given(ints, st.lists(ints, max_size=5), st.text(max_size=20), st.lists(values, max_size=4))
def test_a_request_survives(id: int, settled: list[int], method: str, args: list[Any]) -> None:
    [payload] = FrameParser().feed(Encoder().request(id, settled, method, args))
    assert messages.split_request(payload) == (id, settled, method, args)


@given(ints, st.sampled_from(Status), values)
def test_a_response_survives(id: int, status: Status, value: Any) -> None:
    [payload] = FrameParser().feed(messages.encode_response(id, status, messages.pack(value)))
    assert messages.split_response(payload) == (id, status, value)


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 30))
def test_frames_come_out_of_any_split(payloads: list[bytes], step: int) -> None:
    stream = b"".join(map(messages.frame, payloads))
    parser = FrameParser()
    out = []
    for start in range(0, len(stream), step):
        out += parser.feed(stream[start : start + step])
    assert out == payloads


@given(st.binary(max_size=200))
def test_noise_is_no_message(noise: bytes) -> None:
    for split in (messages.split_request, messages.split_response):
        try:
            split(noise)
        except WireError:
            pass


def test_a_huge_announcement_is_refused_when_it_arrives() -> None:
    with pytest.raises(WireError, match="at most 8388608"):
        FrameParser().feed(b"\xff\xff\xff\xff")


def test_a_huge_message_is_refused_before_it_is_sent() -> None:
    with pytest.raises(WireError, match="split it over several keys"):
        Encoder().request(1, [], "set", ["key", bytes(messages.MAX_FRAME)])


def test_what_msgpack_cannot_say_is_refused() -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        messages.pack(object())
    with pytest.raises(WireError, match="cannot be sent"):
        messages.pack(2**70)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 100_000,  # a list in a list in a list …
        msgpack.packb([1, [], "get", [msgpack.ExtType(5, b"x")]]),
        msgpack.packb([1, [], "get", [{1: 2}]]),
        msgpack.packb([1, ["x"], "get", []]),
        msgpack.packb([1, [], "get", []]) + b"x",
        b"\xdd\xff\xff\xff\xff",
    ],
    ids=["deep", "extension", "integer map key", "settled", "behind", "long list"],
)
def test_unwelcome_requests(payload: bytes) -> None:
    with pytest.raises(WireError):
        messages.split_request(payload)


def test_unwelcome_responses() -> None:
    for value in ([1, 9, None], [1, -1, None], [1, 0], {"id": 1}, ["1", 0, None]):
        with pytest.raises(WireError):
            messages.split_response(messages.pack(value))


@given(ints, values)
def test_a_reply_to_one_is_what_a_reply_to_many_is(id: int, value: Any) -> None:
    assert Encoder().reply(id, value) == messages.encode_response(id, Status.reply, messages.pack(value))


def test_an_encoder_goes_on_after_what_it_refused() -> None:
    encoder = Encoder()
    expected = encoder.reply(1, b"x")
    for unsayable in (object(), [b"half", 2**70]):
        with pytest.raises(WireError, match="cannot be sent"):
            encoder.reply(1, unsayable)
    with pytest.raises(WireError, match="split it over several keys"):
        encoder.request(1, [], "set", ["key", bytes(messages.MAX_FRAME)])
    assert encoder.reply(1, b"x") == expected


def test_a_frame_that_comes_alone_is_bounded_too() -> None:
    parser = FrameParser(limit=4)
    assert parser.feed(b"\x04\0\0\0four") == [b"four"]
    with pytest.raises(WireError, match="at most 4"):
        parser.feed(b"\x05\0\0\0fives")
