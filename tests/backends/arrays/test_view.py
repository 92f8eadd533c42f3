from __future__ import annotations

import array
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from aiodist.backends.arrays.view import overlaps_itself, view
from aiodist.base.errors import UsageError
from aiodist.base.types import DTYPES


class Exporter:
    """Something that is no ndarray but exports one, through DLPack or the array interface."""

    def __init__(self, data: np.ndarray[Any, Any], device: int = 1) -> None:
        self._data = data
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)


class Subclass(np.ndarray[Any, Any]):
    pass


class Interface:
    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self._data = data
        self.__array_interface__ = data.__array_interface__


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0, 2), (2, 3)])
def test_every_dtype_and_shape_shares_memory(shape: tuple[int, ...]) -> None:
    for dtype in DTYPES:
        check_shared(dtype, shape)


def check_shared(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    data = np.zeros(shape, dtype)
    seen = view(data, writable=True)
    assert (seen.shape, seen.dtype) == (shape, dtype)
    assert seen.size == data.size and seen.nbytes == data.nbytes
    if seen.size:
        seen.reshape(-1)[-1] = 1
        assert data.reshape(-1)[-1] != 0


def test_strided_arrays_are_seen_as_such() -> None:
    data = np.arange(12.0).reshape(3, 4)
    for strided in (data.T, data[:, ::2], data[::-1], np.asfortranarray(data)):
        seen = view(strided, writable=True)
        assert seen is strided


@pytest.mark.parametrize(
    ("obj", "dtype"),
    [
        (bytearray(b"abcd"), np.uint8),
        (array.array("d", [1, 2, 3]), np.float64),
        (memoryview(bytearray(8)).cast("i"), np.int32),
        (Interface(np.arange(3, dtype=np.float32)), np.float32),
        (np.arange(3.0).view(Subclass), np.float64),
    ],
    ids=lambda v: type(v).__name__,
)
def test_other_families_share_memory(obj: Any, dtype: type) -> None:
    seen = view(obj, writable=True)
    assert type(seen) is np.ndarray and seen.dtype == dtype
    seen[0] = 77
    assert view(obj, writable=False)[0] == 77


def test_dlpack_producers_share_memory() -> None:
    data = np.arange(3, dtype=np.int16)
    exporter = Exporter(data)
    data[0] = 77
    assert view(exporter, writable=False).tolist() == [77, 1, 2]
    if np.from_dlpack(exporter).flags.writeable:  # NumPy says so from 2.1 on
        view(exporter, writable=True)[1] = 5
        assert data[1] == 5


def test_bytes_can_be_read() -> None:
    assert view(b"xyz", writable=False).tobytes() == b"xyz"


def read_only() -> np.ndarray[Any, Any]:
    data = np.zeros(3)
    data.flags.writeable = False
    return data


def interleaved() -> np.ndarray[Any, Any]:
    return as_strided(np.zeros(8), (3, 3), (8, 16))


@pytest.mark.parametrize(
    ("obj", "match"),
    [
        (read_only(), "tensor is read-only, and this operation writes to it. Pass a writable array as out="),
        (b"abc", "tensor is read-only"),
        (1.5, r"tensor is a single float, which cannot be .* np.array\(\[1.5\]\), or a torch tensor"),
        (np.float32(1), r"tensor is a single float32, .*np.array\(\[np.float32\(1.0\)\]\)"),
        (True, "tensor is a single bool"),
        ([1, 2], "tensor must be an array or tensor, got list"),
        ("text", "got str"),
        (None, "got NoneType"),
        (object(), "got object"),
        (np.zeros(2, np.dtype(">f4")), "byte order '>f4'"),
        (np.array([object()]), "dtype object cannot be communicated. Convert to one of: bool, uint8"),
        (np.zeros(2, "M8[s]"), "cannot be communicated"),
        (np.zeros(2, np.longdouble), "cannot be communicated"),
        (np.zeros(2, [("a", "f4")]), "cannot be communicated"),
        (np.ma.masked_array([1.0], [True]), "masked array"),
        (Exporter(np.zeros(1), device=2), r"tensor lies on DLPack device \(2, 0\)"),
        (as_strided(np.zeros(3), (4, 3), (0, 8)), "tensor overlaps itself"),
        (interleaved(), "tensor overlaps itself"),
    ],
)
def test_what_cannot_be_written_is_refused(obj: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        view(obj, writable=True)


def test_device_memory_is_refused() -> None:
    class OnGpu:
        __cuda_array_interface__ = None

    with pytest.raises(UsageError, match="out lies on a CUDA device"):
        view(OnGpu(), writable=True, what="out")


def test_the_error_names_the_argument() -> None:
    with pytest.raises(UsageError, match=r"out is read-only.*Pass a writable array"):
        view(read_only(), writable=True, what="out")


def test_a_buffer_that_numpy_cannot_read() -> None:
    with pytest.raises(UsageError, match="buffer of format"):
        view(memoryview(bytearray(8)).cast("P"), writable=False)


def test_what_is_only_read_may_be_read_only_and_broadcast() -> None:
    assert view(read_only(), writable=False).flags.c_contiguous
    assert not view(np.broadcast_to(np.ones(3), (4, 3)), writable=False).flags.c_contiguous


@given(
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    strides=st.lists(st.integers(-20, 20), min_size=3, max_size=3),
)
def test_overlap_with_itself_is_exact(shape: tuple[int, ...], strides: list[int]) -> None:
    memory = np.zeros(400, np.uint8)[200:202].view(np.uint16)
    strided = as_strided(memory, shape, strides[: len(shape)])
    starts = [sum(i * s for i, s in zip(index, strides, strict=False)) for index in np.ndindex(*shape)]
    shared = sum(abs(a - b) < 2 for a in starts for b in starts) > len(starts)
    assert overlaps_itself(strided) == shared


def test_bfloat16_has_bytes() -> None:
    seen = view(np.ones(2, ml_dtypes.bfloat16), writable=False)
    assert seen.tobytes() == b"\x80\x3f\x80\x3f"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays_of_jax_share_their_memory_and_are_read_only(dtype: str) -> None:
    jax = pytest.importorskip("jax", reason="JAX's arrays")
    given = jax.numpy.asarray([[1.5, -2.0], [3.0, 4.0]], dtype)
    array = view(given, writable=False)
    assert array.dtype.name == dtype and array.shape == (2, 2)
    assert array.ctypes.data == given.unsafe_buffer_pointer() and not array.flags.writeable
    assert array.astype(float).tolist() == [[1.5, -2.0], [3.0, 4.0]]
    with pytest.raises(UsageError, match="is read-only"):
        view(given, writable=True)


def test_an_array_of_jax_of_another_dtype_is_refused() -> None:
    jax = pytest.importorskip("jax", reason="JAX's arrays")
    with pytest.raises(UsageError, match="tensor exports no memory that NumPy can read"):
        view(jax.numpy.ones(2, jax.numpy.float8_e4m3fn), writable=False)
