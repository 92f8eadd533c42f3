"""JSON of others: what is usual is read, what would take far more memory than its size is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.net.wire.bounded_json import load_json
from tests.levels import COSTLY

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow(COSTLY)
@given(VALUES)
def test_any_small_value_is_read(value: Any) -> None:
    assert load_json(json.dumps(value).encode(), 1 << 20) == value


def test_many_records_are_read() -> None:
    records = [{"name": f"rank {n}", "number": n, "shape": [n, 3]} for n in range(20_000)]
    assert load_json(json.dumps(records).encode(), 8 << 20) == records


@pytest.mark.parametrize("text", [b"[],", b"{},", b"0,", b'"",', b"[[[]]],", b'{"":0},'])
def test_many_parts_in_little_text_are_not(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(ValueError, match="too many for its size"):
        load_json(b"[" + text * 100_000 + b"0]", 8 << 20)


def test_what_is_too_large_or_too_deep() -> None:
    with pytest.raises(ValueError, match="at most 10 are expected"):
        load_json(b'"0123456789"', 10)
    with pytest.raises(RecursionError):
        load_json(b"[" * 900 + (b" " * 1_000_000) + b"[" * 100_000, 1 << 21)
