"""Views survive the way to other hosts; what is no parcel, or too much, is refused."""

from __future__ import annotations

import zlib

import pytest

from aiodist.errors import WireError
from aiodist.observe import parcel
from aiodist.observe.parcel import pack, unpack
from tests.observe.made import a_rank, a_record


def test_views_come_back_and_only_the_last_operations() -> None:
    views = [a_rank(rank, [a_record(number=number) for number in range(9)]) for rank in range(3)]
    assert unpack(pack(views, 9)) == views
    assert [record.number for record in unpack(pack(views, 2))[1].recording.last] == [7, 8]


@pytest.mark.parametrize("data", [b"", b"x", zlib.compress(b"[1]"), zlib.compress(b"nothing")])
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack(data)


def test_a_small_parcel_cannot_hold_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcel, "LARGEST", 1000)
    with pytest.raises(WireError, match="more than"):
        unpack(zlib.compress(b" " * 10_000))
