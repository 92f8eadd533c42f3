"""Messages and records: what goes in comes out, and anything else is a WireError."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.group.membership.finding import Finding, decode_finding
from aiodist.group.membership.messages import (
    Accept,
    Accepted,
    Answer,
    Ask,
    Decided,
    Draft,
    Dropped,
    Leave,
    MemberMessage,
    Outbid,
    Prepare,
    Promise,
    Ready,
    Void,
    decode,
    encode,
)
from aiodist.group.membership.record import UID_BYTES, Record, decode_record, record_of
from tests.levels import COSTLY

NUMBER = st.integers(0, 2**31)
UID = st.binary(min_size=UID_BYTES, max_size=UID_BYTES)
UIDS = st.lists(UID, min_size=1, max_size=9, unique=True).map(tuple)
BALLOT = st.tuples(NUMBER, NUMBER)
WORDS = st.text(max_size=60)
VALUE = st.binary(max_size=80)
RECORDS = st.builds(Record, NUMBER, BALLOT, UIDS, WORDS, UID | st.just(b""))
MOTIONS: st.SearchStrategy[MemberMessage] = st.one_of(
    st.builds(Ready, NUMBER, NUMBER, st.booleans(), NUMBER, st.lists(UID, max_size=4).map(tuple)),
    st.builds(Draft, NUMBER, RECORDS),
    st.builds(Dropped, NUMBER, BALLOT, st.lists(UID, max_size=4).map(tuple), WORDS),
    st.builds(Decided, NUMBER, RECORDS),
    st.builds(Void, NUMBER, WORDS, st.booleans()),
    st.builds(Prepare, WORDS, BALLOT),
    st.builds(Promise, WORDS, BALLOT, st.none() | st.tuples(BALLOT, VALUE)),
    st.builds(Accept, WORDS, BALLOT, VALUE),
    st.builds(Accepted, WORDS, BALLOT, VALUE),
    st.builds(Outbid, WORDS, BALLOT),
    st.builds(Ask, WORDS),
    st.builds(Answer, WORDS, st.none() | VALUE),
    st.just(Leave()),
)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**40) | st.binary(max_size=9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)


@given(MOTIONS)
def test_messages_come_out_as_they_went_in(message: MemberMessage) -> None:
    assert decode(encode(message)) == message


@given(RECORDS)
def test_records_come_out_as_they_went_in(record: Record) -> None:
    assert decode_record(record.encode()) == record
    assert record.rank_of(record.members[-1]) == len(record.members) - 1
    assert record.rank_of(b"nobody!!") is None


@given(VALUE, st.integers(0, 99), st.lists(st.integers(0, 99)).map(tuple))
def test_findings_come_out_as_they_went_in(value: bytes, by: int, without: tuple[int, ...]) -> None:
    finding = Finding(value, by, without)
    assert decode_finding(finding.encode()) == finding


@pytest.mark.parametrize(
    "values", [None, (b"yes", 1), ("yes", 1, ()), (b"yes", b"1", ()), (b"yes", 1, (True,)), (b"yes", 1, 2)]
)
def test_what_is_no_finding(values: Any) -> None:
    with pytest.raises(WireError, match="finding"):
        decode_finding(msgpack.packb(values))


@given(st.binary(max_size=200))
def test_noise_is_a_wire_error_or_a_motion(data: bytes) -> None:
    for read in (decode, decode_record, decode_finding):
        try:
            read(data)
        except WireError:
            pass


@pytest.mark.slow(COSTLY)
@given(st.integers(0, 15), st.lists(PLAIN, max_size=6))
def test_other_values_are_a_wire_error_or_a_motion(code: int, body: list[Any]) -> None:
    try:
        found = decode(msgpack.packb((code, body)))
    except WireError:
        return
    assert decode(encode(found)) == found  # whatever is taken can be passed on


@given(MOTIONS, st.data())
def test_a_changed_message_is_a_wire_error_or_a_message(message: MemberMessage, data: st.DataObject) -> None:
    raw = bytearray(encode(message))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    except WireError:
        return
    assert decode(encode(found)) == found


UIDS_OF_TWO = (b"a" * UID_BYTES, b"b" * UID_BYTES)


@pytest.mark.parametrize(
    "values",
    [
        (-1, (1, 0), UIDS_OF_TWO, "", b""),
        (1, (1, 0), (), "", b""),
        (1, (1, 0), (b"short",), "", b""),
        (1, (1, 0), (*UIDS_OF_TWO, UIDS_OF_TWO[0]), "", b""),
        (1, (1,), UIDS_OF_TWO, "", b""),
        (1, (1, 0), list(UIDS_OF_TWO), "", b""),
        (1, (1, 0), UIDS_OF_TWO, b"", b""),
        (1, (1, 0), UIDS_OF_TWO, ""),
        None,
    ],
)
def test_what_is_no_record(values: Any) -> None:
    with pytest.raises(WireError, match="record"):
        record_of(values)
