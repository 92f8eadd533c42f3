"""The coding of control messages: what goes in comes out, and nonsense is a WireError, nothing else."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.base.sanitize import one_line
from aiodist.group.control.liveness import LoopState
from aiodist.group.control.messages import EVERYBODY, MAX_BYTES, PING, Message, Say, decode

WORD = st.integers(0, 2**64 - 1)
RANK = st.integers(0, 10_000)
TEXT = st.text(max_size=50).map(one_line)  # as texts arrive: what is no printable line becomes one
COUNTS = st.lists(st.tuples(RANK, WORD)).map(lambda pairs: tuple(n for pair in pairs for n in pair))
BODIES: dict[Say, st.SearchStrategy[tuple[Any, ...]]] = {
    Say.lost: st.tuples(RANK, TEXT, st.integers(-1, 2**40)),
    Say.broken: st.tuples(WORD, TEXT, st.lists(RANK, max_size=5).map(tuple)),
    Say.stalled: st.tuples(WORD, WORD),
    Say.where: st.tuples(WORD, WORD),
    Say.here: st.tuples(WORD, WORD, st.booleans(), st.binary(max_size=32), TEXT),
    Say.missing: st.tuples(WORD, WORD, *[st.lists(RANK, max_size=20).map(tuple)] * 2),
    Say.left: st.tuples(WORD, RANK, WORD, st.lists(COUNTS, max_size=3).map(tuple)),
    Say.membership: st.tuples(WORD, st.binary(max_size=50)),
    Say.blocked: st.tuples(RANK, st.sampled_from(LoopState).map(int), st.integers(0, 2**40), TEXT),
}
MESSAGES = st.sampled_from(Say).flatmap(
    lambda say: st.builds(
        Message,
        say=st.just(say),
        origin=RANK,
        number=WORD,
        target=st.integers(EVERYBODY, 10_000),
        hops=st.integers(0, 64),
        body=BODIES[say],
    )
)


def test_every_kind_has_a_body_here() -> None:
    assert BODIES.keys() == set(Say)


@given(MESSAGES)
def test_roundtrip(message: Message) -> None:
    assert decode(message.encode()) == message


@settings(max_examples=100)
@given(st.binary(max_size=80))
def test_random_bytes_are_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=100)
@given(VALUES)
def test_any_other_value_is_a_wire_error(value: Any) -> None:
    with pytest.raises(WireError):
        decode(msgpack.packb(value))


@settings(max_examples=100)
@given(say=st.sampled_from(Say), head=st.lists(st.integers(0, 9), min_size=4, max_size=4), body=VALUES)
def test_a_body_of_the_wrong_make_is_a_wire_error_or_harmless(say: Say, head: list[int], body: Any) -> None:
    data = msgpack.packb([say, *head, body])
    try:
        message = decode(data)
    except WireError:
        return
    # What gets through has the right fields, and can name a group.
    assert type(message.body) is tuple
    hash(message.body[0])
    assert decode(message.encode()).say is say


@given(MESSAGES, st.data())
def test_cut_and_flipped_messages(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(message.encode())
    with pytest.raises(WireError):
        decode(bytes(encoded[: data.draw(st.integers(0, len(encoded) - 1))]))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decode(bytes(encoded))
    except WireError:
        pass


def test_a_ping_is_no_message() -> None:
    with pytest.raises(WireError):
        decode(PING)


def test_too_long_both_ways() -> None:
    long = Message(Say.lost, 0, 1, EVERYBODY, 64, (1, "x" * MAX_BYTES, -1))
    with pytest.raises(WireError, match=r"65536 are allowed"):
        long.encode()
    with pytest.raises(WireError, match=r"65536 are allowed"):
        decode(b"\xc0" * (MAX_BYTES + 1))


def test_the_error_repeats_little_of_what_came() -> None:
    data = msgpack.packb(["x" * 50_000, 0, 1, 2, 3, []])
    with pytest.raises(WireError) as caught:
        decode(data)
    assert len(str(caught.value)) < 1000
