"""Lengths that lie take no memory; what is whole is read as msgpack reads it."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgpack
import pytest

from aiodist.net.wire import bounded


@pytest.mark.parametrize("nbytes", [900, 1025, 60_000])
@pytest.mark.parametrize("use_list", [True, False])
def test_lists_that_claim_more_than_there_is_take_no_memory(nbytes: int, use_list: bool) -> None:
    data = (b"\xdc" + struct.pack(">H", nbytes - 1)) * 300
    data = data[:nbytes].ljust(nbytes, b"\xc0")
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, msgpack.UnpackException)):
            bounded.unpack(data, use_list=use_list)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_what_is_whole_is_read_whatever_its_size() -> None:
    values: list[Any] = [[], [1] * 2000, {"a": [b"x" * 5000] * 3}, b"x" * 100_000, [[[]] * 500] * 10]
    for value in values:
        data = msgpack.packb(value)
        assert bounded.unpack(data) == value
        assert bounded.unpack(memoryview(data)) == value
        with pytest.raises(ValueError):
            bounded.unpack(data + b"\xc0")
        with pytest.raises((ValueError, msgpack.UnpackException)):
            bounded.unpack(data[:-1])
