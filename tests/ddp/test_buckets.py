from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.types import BFLOAT16
from aiodist.ddp.buckets import MIB, plan

F32 = np.dtype(np.float32)
F64 = np.dtype(np.float64)


def layout(arrays: list[tuple[np.dtype[np.generic], int]], cap: int) -> list[list[int]]:
    return [[slot.index for slot in bucket.slots] for bucket in plan(arrays, cap)]


def test_reverse_order_first_bucket_small() -> None:
    quarter = MIB // 4 // 4  # elements of float32 in 256 KiB
    assert layout([(F32, quarter)] * 14, 2 * MIB) == [[13, 12, 11, 10], [9, 8, 7, 6, 5, 4, 3, 2], [1, 0]]


def test_an_array_larger_than_the_limit_is_not_divided() -> None:
    assert layout([(F32, 10), (F32, MIB), (F32, 10)], MIB) == [[2, 1], [0]]


def test_one_dtype_a_bucket_started_when_its_last_array_comes() -> None:
    # float64's bucket is complete at array 1, float32's only at array 0
    assert layout([(F32, 1), (F64, 1), (F32, 1), (F64, 1)], MIB) == [[3, 1], [2, 0]]


def test_nothing_to_do() -> None:
    assert plan([], MIB) == []


@given(
    arrays=st.lists(st.tuples(st.sampled_from([F32, F64, BFLOAT16]), st.integers(0, 400))),
    cap=st.integers(1, 4000),
)
def test_every_array_has_one_place(arrays: list[tuple[np.dtype[np.generic], int]], cap: int) -> None:
    buckets = plan(arrays, cap)
    seen = sorted(slot.index for bucket in buckets for slot in bucket.slots)
    assert seen == list(range(len(arrays)))
    for bucket in buckets:
        end = 0
        for slot in bucket.slots:
            assert (bucket.dtype, slot.stop - slot.start) == arrays[slot.index]
            assert slot.start == end
            end = slot.stop
        assert bucket.count == end
        assert (bucket.count - (end - bucket.slots[-1].start)) * bucket.dtype.itemsize < cap
    ends = [bucket.slots[-1].index for bucket in buckets]
    assert ends == sorted(ends, reverse=True)
