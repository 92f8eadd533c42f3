"""What ranks print, as text that gives no orders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.output import LONGEST, lines


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"", []),
        (b"\x1b[1;31mred\x1b[0m\n", ["red"]),
        (b"\x1b]0;title\x07x\x1b]8;;http://e\x1b\\link\n", ["xlink"]),
        (b"\x1bPdevice\x1b\\y\x1b(Bz\n", ["yz"]),
        (b"10%\r50%\r99%\n", ["99%"]),
        (b"windows\r\n", ["windows"]),
        (b"    indented\tx\n", ["    indented    x"]),
        ("bidi\u202etext\u0085\u2028\n".encode(), ["bidi text"]),
        (b"\xff\xfe\n", ["\ufffd\ufffd"]),
        (b"<script>alert(1)</script>\n", ["<script>alert(1)</script>"]),
    ],
)
def test_lines(data: bytes, told: list[str]) -> None:
    assert lines(data) == told


@given(st.binary(max_size=200))
def test_nothing_that_is_printed_is_a_control_character(data: bytes) -> None:
    assert all(line.isprintable() for line in lines(data))


def test_a_line_is_cut() -> None:
    (line,) = lines(b"x" * 100_000)
    assert len(line) == LONGEST and line.endswith("…")
