"""The compiled reductions give what NumPy's way gives, for every dtype and operation."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist import _engine
from aiodist._engine import Compiled
from aiodist.backends.arrays.kernels.reduce import by_numpy, combine
from aiodist.base.errors import UsageError
from aiodist.base.types import BFLOAT16, DTYPE_CODES, ReduceOp, check_reduction
from tests.helpers import needs_the_engine

Array = npt.NDArray[Any]

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-7, -6e-8, 65504.0, 3e38]


def has_meaning(dtype: np.dtype[Any], op: ReduceOp) -> bool:
    try:
        check_reduction(op, dtype)
    except UsageError:
        return False
    return True


CASES = [case for case in itertools.product(DTYPE_CODES, ReduceOp) if has_meaning(*case)]


@pytest.fixture(scope="module")
def engine() -> Compiled:
    return needs_the_engine()


def no_other(left: Array, right: Array, out: Array) -> None:
    raise AssertionError("NumPy's way was taken")


def values(dtype: np.dtype[Any], count: int, seed: int) -> Array:
    """All bits that the dtype has, and many special numbers."""
    rng = np.random.default_rng(seed)
    array: Array = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(
        np.uint8 if dtype == np.bool_ else dtype
    )
    if dtype == np.bool_:
        return (array & 1).view(np.bool_)
    if is_floating(dtype) and count:
        parts = components(array)
        with np.errstate(all="ignore"):
            parts[rng.integers(0, parts.size, parts.size // 2)] = rng.choice(SPECIAL, parts.size // 2).astype(
                parts.dtype
            )
    return array


def is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fc" or dtype == BFLOAT16


def components(array: Array) -> Array:
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


def check(got: Array, want: Array) -> None:
    """The same bits, but for a NaN's: the engine has one."""
    got, want = components(got), components(want)
    bits = np.dtype(f"u{got.dtype.itemsize}")
    same = got.view(bits) == want.view(bits)
    if is_floating(got.dtype):
        nan = np.isnan(want)
        same = np.where(nan, np.isnan(got), same)
        assert len(set(got.view(bits)[nan].tolist())) <= 1
    assert same.all(), (got[~same][:3], want[~same][:3])


@pytest.mark.parametrize(("dtype", "op"), CASES, ids=lambda value: getattr(value, "name", str(value)))
@given(
    count=st.one_of(st.integers(0, 70), st.sampled_from([1023, 20_000])),
    seed=st.integers(0, 1000),
    into=st.sampled_from(["left", "right", "another"]),
    skip=st.integers(0, 3),
)
@settings(max_examples=12)
def test_every_reduction(
    engine: Compiled, dtype: np.dtype[Any], op: ReduceOp, count: int, seed: int, into: str, skip: int
) -> None:
    left, right = (values(dtype, count + skip, seed + side)[skip:] for side in (0, 1))
    want = np.empty(count, dtype)
    by_numpy(left, right, want, op)
    kept = left.tobytes(), right.tobytes()
    out = {"left": left, "right": right, "another": np.zeros(count, dtype)}[into]
    for operand in (left, right):
        operand.flags.writeable = operand is out
    engine.Combiner(dtype, DTYPE_CODES[dtype], op, no_other)(left, right, out)
    check(out, want)
    assert out is left or left.tobytes() == kept[0]
    assert out is right or right.tobytes() == kept[1]


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("divide", [False, True])
def test_scaling_every_half(engine: Compiled, dtype: np.dtype[Any], divide: bool) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    for number in (3, 1 / 3, 0.0, -2.5, float("inf")):
        with np.errstate(all="ignore"):
            wide = every.astype(np.float32)
            want = (wide / np.float32(number) if divide else wide * np.float32(number)).astype(dtype)
        for count in (every.size, 13):
            array = every[:count].copy()
            engine.scale_halves(array, DTYPE_CODES[dtype], number, divide)
            check(array, want[:count])


def test_strided_and_unaligned_arrays_go_the_other_way(engine: Compiled) -> None:
    dtype = np.dtype(np.int32)
    combiner = engine.Combiner(dtype, DTYPE_CODES[dtype], ReduceOp.SUM, lambda a, b, c: np.add(a, b, out=c))
    whole = np.arange(20, dtype=dtype)
    odd = np.zeros(41, np.uint8)[1:].view(dtype)
    odd[...] = np.arange(10, dtype=dtype)
    for left, right in ((whole[::2], odd), (odd, whole[::-2]), (whole[:10], whole[10:])):
        for out in (np.zeros(10, dtype), np.zeros(20, dtype)[::2], np.zeros(41, np.uint8)[1:].view(dtype)):
            combiner(left, right, out)
            assert np.array_equal(out, left + right)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPE_CODES if is_floating(dtype)], ids=str)
def test_where_an_array_lies_changes_no_bit(engine: Compiled, dtype: np.dtype[Any]) -> None:
    """Also of a NaN: strided and unaligned arrays are reduced by the same loop."""
    left, right = (values(dtype, 30_000, seed) for seed in (3, 4))
    for op in (ReduceOp.SUM, ReduceOp.PRODUCT):
        want = np.empty_like(left)
        combine(left, right, want, op)
        strided = np.zeros(60_000, dtype)[::2]
        combine(left, right, strided, op)
        odd = np.zeros(30_000 * dtype.itemsize + 1, np.uint8)[1:].view(dtype)
        odd[...] = left
        combine(odd, right, odd, op)
        assert strided.tobytes() == odd.tobytes() == want.tobytes()


def test_arrays_that_do_not_fit_are_refused_and_nothing_is_written(engine: Compiled) -> None:
    dtype = np.dtype(np.int32)
    combiner = engine.Combiner(dtype, DTYPE_CODES[dtype], ReduceOp.SUM, no_other)
    good, out = np.arange(4, dtype=dtype), np.full(4, 7, dtype)
    for left, right in (
        (good[:3], good),
        (good, good[:3]),
        (good.view(np.float32), good),
        (good, good.view("u4")),
    ):
        with pytest.raises(ValueError, match="arrays of"):
            combiner(left, right, out)
    with pytest.raises(TypeError):
        combiner(good, [1, 2, 3, 4], out)  # type: ignore[arg-type]
    assert out.tolist() == [7] * 4
    for array in (good, np.zeros(8, np.float16)[::2]):
        with pytest.raises(ValueError):
            engine.scale_halves(array, DTYPE_CODES[array.dtype], 2.0, False)
    float32, int64 = DTYPE_CODES[np.dtype(np.float32)], DTYPE_CODES[np.dtype(np.int64)]
    for wrong in ((99, 1), (int64, ReduceOp.SUM), (DTYPE_CODES[dtype], 0), (float32, ReduceOp.BAND)):
        with pytest.raises(ValueError, match="no meaning"):
            engine.Combiner(dtype, *wrong, no_other)


def test_it_runs_in_any_thread_at_once(engine: Compiled) -> None:
    dtype = np.dtype(np.float16)
    combiner = engine.Combiner(dtype, DTYPE_CODES[dtype], ReduceOp.SUM, no_other)
    outs = []

    def run(seed: int) -> None:
        left, right, out = (
            values(dtype, 100_000, seed),
            values(dtype, 100_000, seed + 1),
            np.zeros(100_000, dtype),
        )
        combiner(left, right, out)
        outs.append((left, right, out))

    threads = [threading.Thread(target=run, args=(10 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outs) == 4
    for left, right, out in outs:
        want = np.empty_like(out)
        by_numpy(left, right, want, ReduceOp.SUM)
        check(out, want)


def test_the_extension_was_made_of_these_sources(engine: Compiled) -> None:
    assert _engine.NAME == engine.FINGERPRINT != ""
