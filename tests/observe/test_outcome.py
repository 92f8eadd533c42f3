"""A launcher's word on a job: it comes back as it was, and what is none is told in a line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import WireError
from aiodist.observe.outcome import LARGEST, Outcome

ONE = Outcome(
    *("r", "train.py", 4, 137, 1e9, "rank 2 failed first", 2, "ValueError: x"),
    lines=("a", "  b"),
    others=("c",),
    advice="do",
    folder="/tmp/x",
)


def plain() -> dict[str, object]:
    return dict(json.loads(json.dumps(ONE.to_json())))


def test_it_comes_back_and_gives_a_terminal_no_orders() -> None:
    assert Outcome.parse(json.dumps(ONE.to_json()).encode()) == ONE
    assert Outcome.from_json(plain() | {"more": 1}) == ONE
    odd = Outcome.from_json(plain() | {"title": "\x1b[31mno\nway", "lines": ["\x07bell"] * 1000})
    assert odd.title == "[31mno way" and odd.lines[0] == "bell" and len(odd.lines) < 1000


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"1", b"null", b"{}", b"[" * 100_000, b" " * (LARGEST + 1), b"\xff"]
)
def test_what_is_none(text: bytes) -> None:
    with pytest.raises(WireError, match="no outcome of a job") as info:
        Outcome.parse(text)
    assert "\n" not in str(info.value)


@given(
    st.sampled_from(sorted(plain())), st.sampled_from([None, [], {}, 1.5, float("nan"), 10**400, True, "x"])
)
def test_a_value_of_another_kind_is_told_or_harmless(name: str, value: object) -> None:
    try:
        found = Outcome.from_json(plain() | {name: value})
    except WireError:
        return
    assert len(found.verdict.title.splitlines()) == 1
