"""CuPy's arrays on the memory of tensors: addresses only, none of it is touched. And arithmetic, by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.cuda.arrays import extent, narrow_bfloat16, on_device, widen_bfloat16
from aiodist.tensors.device import geometry
from aiodist.types import BFLOAT16, DTYPES

BASE = 1 << 30


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda a: a,
    "transposed": lambda a: a.T,
    "steps": lambda a: a[::2, 1::3],
    "reversed": lambda a: a[::-1],
    "both reversed": lambda a: a[::-1, ::-2],
    "repeated": lambda a: np.broadcast_to(a[:1], (7, 12)),
    "row": lambda a: a[3],
    "element": lambda a: a[3, 4:5].reshape(()),
    "nothing": lambda a: a[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex128])
def test_extent_covers_the_array_and_no_more(layout: str, dtype: type) -> None:
    whole: Any = np.zeros((8, 12), dtype)
    view = LAYOUTS[layout](whole)
    tensor = geometry(
        BASE + view.__array_interface__["data"][0] - whole.ctypes.data,
        view.shape,
        view.strides,
        view.dtype,
        0,
        whole,
    )
    low, nbytes = extent(tensor)
    if not view.size:
        assert nbytes == 0
        return
    bounds: Any = getattr(np.lib, "array_utils", np)
    start, end = bounds.byte_bounds(view)
    assert (low - BASE, nbytes) == (start - whole.ctypes.data, end - start)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cupy_sees_the_same_addresses(layout: str) -> None:
    pytest.importorskip("cupy")
    import cupy

    whole = np.zeros((8, 12), np.float32)
    view = LAYOUTS[layout](whole)
    offset = view.__array_interface__["data"][0] - whole.ctypes.data
    tensor = geometry(BASE + offset, view.shape, view.strides, view.dtype, 0, whole)
    array = on_device(cupy, tensor)
    assert (array.shape, array.strides, array.dtype) == (view.shape, view.strides, view.dtype)
    assert array.data.ptr == BASE + offset
    assert array.data.mem._owner is whole
    assert array.data.device_id == 0
    if view.ndim == 2 and view.size:
        assert array[1:, 2:].data.ptr == tensor[1:, 2:].__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cupy_takes_all_dtypes(dtype: np.dtype[np.generic]) -> None:
    pytest.importorskip("cupy")
    import cupy

    tensor = geometry(BASE, (5,), None, dtype, 0, None)
    array = on_device(cupy, tensor[1:])
    assert array.dtype == (np.uint16 if dtype == BFLOAT16 else dtype)
    assert array.data.ptr == BASE + dtype.itemsize
    assert array.nbytes == 4 * dtype.itemsize


@given(st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_bfloat16_is_rounded_to_nearest_even(values: list[float]) -> None:
    wide = np.array(values, np.float32)
    bits = np.empty(wide.size, np.uint16)
    narrow_bfloat16(np, wide, bits)
    expected = wide.astype(ml_dtypes.bfloat16)
    numbers = ~np.isnan(wide)
    assert np.array_equal(bits[numbers], expected[numbers].view(np.uint16))
    assert np.isnan(bits.view(ml_dtypes.bfloat16)[~numbers].astype(np.float32)).all()


def test_every_bfloat16_survives_being_widened() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    wide = widen_bfloat16(np, bits)
    exact = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(wide, exact, equal_nan=True)
    back = np.empty_like(bits)
    narrow_bfloat16(np, wide, back)
    numbers = ~np.isnan(exact)
    assert np.array_equal(back[numbers], bits[numbers])
