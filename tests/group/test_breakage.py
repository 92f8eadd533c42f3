"""How the end of a group is told: every error comes out as it went in, and nonsense is a WireError."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.base.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    Evicted,
    GroupAborted,
    GroupBroken,
    PeerLost,
    QuorumLost,
    Tampered,
    WireError,
)
from aiodist.base.sanitize import one_line
from aiodist.group.breakage import pack, unpack
from aiodist.group.control.messages import EVERYBODY, Message, Say, decode

RANKS = st.lists(st.integers(0, 5000), min_size=1, max_size=9, unique=True)
EVIL = "all is well\x1b[2J\x07\r\nrm -rf"
WORDS = st.text(max_size=100).map(one_line)
ERRORS: st.SearchStrategy[GroupBroken] = st.one_of(
    st.builds(PeerLost, RANKS, WORDS),
    st.builds(CollectiveTimeout, st.floats(0.001, 1e6), *[RANKS | st.just([])] * 2, WORDS),
    st.builds(CollectiveMismatch, st.dictionaries(st.integers(0, 5000), WORDS, min_size=1, max_size=9)),
    st.builds(GroupAborted, st.integers(0, 5000), WORDS),
    st.builds(GroupBroken, WORDS),
    st.builds(Tampered, WORDS),
)


def travel(error: GroupBroken) -> GroupBroken:
    """Pack an error, send it over the wire, and unpack it."""
    message = Message(Say.broken, 1, 1, EVERYBODY, 64, (7, *pack(error)))
    _, code, *values = decode(message.encode()).body
    return unpack(code, tuple(values))


@given(ERRORS)
def test_roundtrip(error: GroupBroken) -> None:
    got = travel(error)
    assert type(got) is type(error)
    assert got.message == error.message
    for name in ("ranks", "cause", "timeout", "missing", "unheard", "trouble", "said", "rank", "reason"):
        assert getattr(got, name, None) == getattr(error, name, None)


@pytest.mark.parametrize("error", [Evicted("they went on"), QuorumLost("two are left")])
def test_what_has_no_code_of_its_own_keeps_its_words(error: GroupBroken) -> None:
    got = travel(error)
    assert type(got) is GroupBroken
    assert got.message == error.message


@pytest.mark.parametrize(
    "error",
    [
        PeerLost([3], EVIL),
        CollectiveTimeout(1.5, [2], [4], EVIL),
        CollectiveMismatch({2: EVIL}),
        GroupAborted(1, EVIL),
        GroupBroken(EVIL),
        Tampered(EVIL),
    ],
)
def test_words_of_another_rank_are_one_line(error: GroupBroken) -> None:
    assert all(line.isprintable() and "rm -rf" not in line[:6] for line in str(travel(error)).splitlines())


def test_advice_travels_with_the_words() -> None:
    assert str(travel(GroupBroken("it is full", hint="Close groups"))) == "it is full. Close groups"


def test_the_longest_errors_fit_a_control_message() -> None:
    text = "\N{SNOWMAN}" * 2000
    for error in (
        PeerLost(range(5000), text),
        CollectiveTimeout(1.5, range(5000), range(5000, 10_000), text),
        CollectiveMismatch(dict.fromkeys(range(300), text)),
        GroupAborted(1, text),
        GroupBroken(text),
    ):
        assert type(travel(error)) is type(error)


def test_a_long_mismatch_still_shows_who_differs() -> None:
    said = dict.fromkeys(range(1000), "all_reduce(float32[4], SUM)") | {900: "barrier()"}
    got = travel(CollectiveMismatch(said))
    assert isinstance(got, CollectiveMismatch)
    assert len(set(got.said.values())) == 2


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | WORDS
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100)
@given(
    code=st.sampled_from(["lost", "mismatch", "timeout", "aborted", "broken", "lots", ""]) | VALUES,
    values=st.lists(VALUES, max_size=3).map(tuple),
)
def test_nonsense_is_a_wire_error_or_an_error_that_can_be_shown(code: Any, values: tuple[Any, ...]) -> None:
    error: GroupBroken | WireError
    try:
        error = unpack(code, values)
    except WireError as refused:
        error = refused
    if isinstance(error, WireError):
        assert len(str(error)) < 500
        return
    assert str(error.during("all_reduce", 1, "world"))
    again = unpack(pack(error)[0], msgpack.unpackb(msgpack.packb(pack(error)), use_list=False)[1:])
    assert type(again) is type(error)


@pytest.mark.parametrize(
    ("code", "values"),
    [
        ("lost", ()),
        ("lost", ((), "cause")),
        ("lost", ("abc", "cause")),
        ("lost", ((1,), 5)),
        ("timeout", ("3", (), (), "")),
        ("timeout", (3.0, "ab", (), "")),
        ("timeout", (3.0, (), ("ab",), "")),
        ("timeout", (3.0, (), (), 5)),
        ("timeout", (3.0, ())),
        ("mismatch", ()),
        ("mismatch", ((),)),
        ("mismatch", (((1, 2),),)),
        ("aborted", ({}, "why")),
        ("aborted", (1, 2)),
        ("broken", ()),
        ("broken", (5,)),
        ("broken", ("one", "two")),
        ("exploded", ("x",)),
        (5, ("x",)),
    ],
)
def test_verdicts_of_the_wrong_make(code: Any, values: tuple[Any, ...]) -> None:
    with pytest.raises(WireError, match="not a verdict"):
        unpack(code, values)
