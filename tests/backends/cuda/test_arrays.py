"""Copies, factors and reductions of device arrays, given to kernels: by NumPy, on memory of the host."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.arrays.device import DeviceArray, geometry
from aiodist.backends.cuda import arrays
from aiodist.backends.cuda.arrays import axes_of
from aiodist.base.types import BFLOAT16, DTYPES, ReduceOp
from tests.backends.cuda import emulated

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda a: a,
    "transposed": lambda a: a.T,
    "steps": lambda a: a[::2, 1::3],
    "reversed": lambda a: a[::-1],
    "both reversed": lambda a: a[::-1, ::-2],
    "row": lambda a: a[3],
    "element": lambda a: a[3, 4:5].reshape(()),
    "nothing": lambda a: a[:0],
}


class Module:
    """`cupy`, whose kernels are carried out at once."""

    def __init__(self) -> None:
        self.launched: list[str] = []

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:  # noqa: N802, its name in CuPy
        return self

    def get_function(self, name: str) -> Callable[..., None]:
        def run(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            self.launched.append(name)
            emulated.run(name, arguments)

        return run


def seen(array: Any) -> DeviceArray:
    """An array of the host as one of a device."""
    address = array.__array_interface__["data"][0]
    return geometry(address, array.shape, array.strides, array.dtype, 0, array)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copy_between_layouts(dtype: np.dtype[Any]) -> None:
    for source, to in product(LAYOUTS, LAYOUTS):
        _copy(source, to, dtype)


def _copy(source: str, to: str, dtype: np.dtype[Any]) -> None:
    values = np.arange(1, 97).reshape(8, 12).astype(dtype)
    given_array, target = LAYOUTS[source](values), LAYOUTS[to](np.zeros((8, 12), dtype))
    if given_array.size != target.size:
        target = np.zeros((2, *given_array.shape), dtype)[1:].reshape(given_array.shape)
    elif given_array.shape != target.shape:
        given_array = given_array.reshape(target.shape)
    arrays.copy(Module(), seen(target), seen(given_array))
    assert np.array_equal(target.astype(complex), given_array.astype(complex)), (source, to)


@pytest.mark.parametrize(("narrow", "wide"), [(np.int16, np.int32), (np.uint16, np.uint32)])
def test_integers_are_widened_and_cut_off(narrow: type, wide: type) -> None:
    values: Any = np.array([0, 1, -1, 32767, -32768, 40000]).astype(narrow)
    there: Any = np.zeros(6, wide)
    arrays.copy(Module(), seen(there), seen(values))
    assert np.array_equal(there, values.astype(wide))
    there += np.arange(6, dtype=wide) * 70000
    back: Any = np.zeros(6, narrow)
    arrays.copy(Module(), seen(back), seen(there))
    assert np.array_equal(back, there.astype(narrow))


@pytest.mark.parametrize(("dtype", "count", "offset", "kernel"), [
    (np.uint8, 64, 0, "move_u128_u128"),
    (np.uint8, 64, 1, "move_u8_u8"),
    (np.uint8, 65, 0, "move_u8_u8"),
    (np.uint8, 36, 4, "move_u32_u32"),
    (np.float32, 6, 0, "move_u64_u64"),
    (np.complex128, 5, 0, "move_u128_u128"),
])  # fmt: skip
def test_contiguous_bytes_go_in_the_largest_elements(
    dtype: type, count: int, offset: int, kernel: str
) -> None:
    size = np.dtype(dtype).itemsize
    whole = np.zeros(256, np.uint64).view(np.uint8)
    start = -whole.ctypes.data % 16 + offset
    to: Any
    source: Any
    to, source = (whole[start + at :][: count * size].view(dtype) for at in (0, 1024))
    source[:] = np.arange(1, count + 1)
    module = Module()
    arrays.copy(module, seen(to), seen(source))
    assert module.launched == [kernel]
    assert np.array_equal(to, np.arange(1, count + 1).astype(dtype))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-64, 64), st.integers(-64, 64)), max_size=6))
def test_axes_walk_the_same_places(drawn: list[tuple[int, int, int]]) -> None:
    shape, to, source = ([axis[i] for axis in drawn] for i in range(3))
    axes = axes_of(shape, to, source)
    assert prod(axis.length for axis in axes) == prod(shape)

    def places(walked: Any) -> list[tuple[int, int]]:
        found = [(0, 0)]
        for length, left, right in walked:
            found = [(a + i * left, b + i * right) for a, b in found for i in range(length)]
        return found

    assert places(axes) == places(drawn)


def test_contiguous_axes_become_one() -> None:
    whole = np.zeros((3, 4, 5, 6))
    assert len(axes_of(whole.shape, whole.strides, whole.strides)) == 1
    assert axes_of((1, 1), (8, 8), (8, 8)) == []


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32, np.float64, np.complex64, np.complex128])
def test_factor(dtype: Any) -> None:
    values = np.arange(-20, 20).astype(dtype)
    expected = (values.astype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64) * 0.25).astype(
        dtype
    )
    arrays.scale(Module(), seen(values), 0.25)
    assert np.array_equal(values, expected)
    arrays.scale(Module(), seen(values[:0]), 0.5)


@pytest.mark.parametrize("op", [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind in "iub"], ids=str)
def test_bitwise_reductions(dtype: np.dtype[Any], op: ReduceOp) -> None:
    rows = np.random.default_rng(3).integers(0, 2 if dtype.kind == "b" else 100, (3, 7)).astype(dtype)
    target: Any = np.zeros(7, dtype)
    arrays.fold(Module(), [seen(row) for row in rows], seen(target), op)
    ufunc = {ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or, ReduceOp.BXOR: np.bitwise_xor}[op]
    assert np.array_equal(target, ufunc.reduce(rows))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_product_of_complex_numbers(dtype: type) -> None:
    rows: Any = (np.arange(1, 22).reshape(3, 7) + 1j * np.arange(21).reshape(3, 7)).astype(dtype)
    target: Any = np.zeros(7, dtype)
    arrays.fold(Module(), [seen(row) for row in rows], seen(target), ReduceOp.PRODUCT)
    assert np.allclose(target, rows.prod(axis=0))
