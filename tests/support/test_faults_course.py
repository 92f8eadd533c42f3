"""What a fault does to a stream of bytes, however the network cuts the stream."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.faults.course import Clog, Course, Cut, Fault, Finish, Forward


def passed(course: Course, pieces: list[bytes]) -> tuple[bytes, object]:
    """What comes through, and what ended it (None: nothing did)."""
    got = b""
    for piece in pieces:
        for effect in course.feed(piece):
            if not isinstance(effect, Forward):
                return got, effect
            got += effect.data
    return got, None


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes], int]:
    """Bytes, the same in pieces, and the number of one of them."""
    data = draw(st.binary(min_size=1, max_size=60))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    pieces = [data[a:b] for a, b in pairwise([0, *cuts, len(data)])]
    return data, pieces, draw(st.integers(0, len(data) - 1))


@given(streams(), st.integers(0, 7))
def test_corrupt_flips_one_bit_of_one_byte(stream: tuple[bytes, list[bytes], int], bit: int) -> None:
    data, pieces, at = stream
    got, end = passed(Course([Fault("corrupt", at, bit)]), pieces)
    assert end is None
    assert [i for i in range(len(data)) if got[i] != data[i]] == [at]
    assert got[at] ^ data[at] == 1 << bit


@given(streams())
def test_what_comes_before_a_fault_passes_and_nothing_after(stream: tuple[bytes, list[bytes], int]) -> None:
    data, pieces, at = stream
    assert passed(Course([Fault("drop", at)]), pieces) == (data[:at], None)
    assert passed(Course([Fault("finish", at)]), pieces) == (data[:at], Finish())
    assert passed(Course([Fault("cut", at)]), pieces) == (data[:at], Cut())


@given(streams())
def test_a_clog_keeps_what_is_left_of_the_piece(stream: tuple[bytes, list[bytes], int]) -> None:
    data, pieces, at = stream
    course = Course([Fault("clog", at)])
    rest = list(pieces)
    got = b""
    clogs = 0
    while rest:
        for effect in course.feed(rest.pop(0)):
            if isinstance(effect, Clog):
                assert got == data[:at]
                clogs += 1
                rest.insert(0, effect.data)
            else:
                assert isinstance(effect, Forward)
                got += effect.data
    assert (got, clogs) == (data, 1)


def test_several_faults_in_one_piece() -> None:
    course = Course([Fault("finish", 6), Fault("corrupt", 1), Fault("corrupt", 3, bit=1)])
    assert course.feed(b"\0" * 9) == [Forward(b"\0\1\0\2\0\0"), Finish()]


def test_a_fault_that_is_added_counts_from_here() -> None:
    course = Course([])
    assert course.feed(b"abc") == [Forward(b"abc")]
    course.add("cut", after=2)
    assert course.feed(b"defg") == [Forward(b"de"), Cut()]


@pytest.mark.parametrize("fault", [{"at": -1}, {"at": 0, "bit": 8}])
def test_a_fault_that_means_nothing_is_refused(fault: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a fault needs"):
        Fault("corrupt", **fault)
