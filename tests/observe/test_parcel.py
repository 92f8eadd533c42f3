"""Views survive the way to other hosts; what is no parcel, or too much, is refused before it is unpacked."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from aiodist.base.errors import WireError
from aiodist.net.wire.bounded_json import load_json
from aiodist.observe import parcel
from aiodist.observe.parcel import LONGEST, pack, unpack
from tests.levels import COSTLY
from tests.observe.made import a_rank, a_record


def test_views_come_back_and_only_the_last_operations() -> None:
    views = [a_rank(rank, [a_record(number=number) for number in range(9)]) for rank in range(3)]
    assert unpack(pack(views, 9)) == views
    assert [record.number for record in unpack(pack(views, 2))[1].recording.last] == [7, 8]
    assert unpack(pack([], 2)) == []


def test_ranks_with_all_their_operations_fit() -> None:
    last = [a_record(number=number, issued=10.0 + number / 7) for number in range(2048)]
    views = [a_rank(rank, last) for rank in range(4)]
    assert unpack(pack(views, 1 << 20)) == views


WHOLE = pack([a_rank()], 9)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        zlib.compress(b"[1]"),
        zlib.compress(b"nothing\n"),
        zlib.compress(b"\n"),
        WHOLE[:-8],
        WHOLE + b"x",
        zlib.compress(json.dumps([a_rank().to_json()]).encode()),
    ],
)
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack(data)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each text that is parsed."""
    sizes: list[int] = []

    def noting(data: bytes, *args: Any, **more: Any) -> Any:
        sizes.append(len(data))
        return load_json(data, *args, **more)

    monkeypatch.setattr(parcel, "load_json", noting)
    return sizes


@pytest.mark.slow(COSTLY)
def test_a_small_parcel_cannot_hold_much(parsed: list[int]) -> None:
    """Of any of these, 64 KiB held a GiB of memory, and the loop for seconds."""
    for text in (b" ", b"[],", b"0,", b"[[],[]],\n", b'"",'):
        data = zlib.compress(text * ((60 << 20) // len(text)), 9)
        assert len(data) < 300_000
        with pytest.raises(WireError):
            unpack(data)
    assert sum(parsed) <= LONGEST


def test_what_is_parsed_has_few_parts() -> None:
    """Text that does not get smaller holds many empty lists, too."""
    for text in (b"[" + b"[]," * 300_000 + b"[]]\n", b"[" + b"{}," * 300_000 + b"1]\n"):
        with pytest.raises(WireError, match="too many for its size"):
            unpack(zlib.compress(text, 0))
