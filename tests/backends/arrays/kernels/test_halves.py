"""float16 and bfloat16, computed by NumPy and by the compiled engine: the bits are the same."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiodist import _engine
from aiodist.backends.arrays.kernels import combine, finish, halves, scale, unwarned
from aiodist.backends.arrays.kernels.halves import BLOCK
from aiodist.base.types import BFLOAT16, ReduceOp
from tests.helpers import needs_the_engine
from tests.levels import COSTLY

Array = npt.NDArray[Any]

FLOAT16 = np.dtype(np.float16)
DTYPES = [FLOAT16, BFLOAT16]
EVERY = np.arange(1 << 16, dtype=np.uint16)
UFUNCS: dict[ReduceOp, Any] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


@pytest.fixture(params=["numpy", "compiled"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What computes. Every test here runs with both."""
    if request.param == "compiled":
        needs_the_engine()
    else:
        monkeypatch.setattr(_engine, "compiled", None)
    return str(request.param)


def expected(left: Array, right: Array, op: ReduceOp) -> Array:
    """In float32, and rounded once; float16's MIN and MAX are NumPy's own, which order zeros otherwise."""
    with np.errstate(all="ignore"):
        if left.dtype == FLOAT16 and op in (ReduceOp.MIN, ReduceOp.MAX):
            result: Array = UFUNCS[op](left, right)
        else:
            result = UFUNCS[op](left.astype(np.float32), right.astype(np.float32)).astype(left.dtype)
    return result


def check(got: Array, want: Array) -> None:
    """The same bits, but for a NaN's sign and payload."""
    nan = np.isnan(want)
    wrong = np.where(nan, ~np.isnan(got), got.view(np.uint16) != want.view(np.uint16))
    where = np.flatnonzero(wrong)
    assert not where.size, f"{where.size} differ, the first at {where[0]}: {got[where[0]]}, {want[where[0]]}"


def narrowed(wide: Array, dtype: np.dtype[Any]) -> Array:
    """All of `wide` through `narrow`, block by block."""
    result = np.empty(wide.size, dtype)
    for start in range(0, wide.size, BLOCK):
        part = result[start : start + BLOCK]
        halves.halves.wide[0, : part.size] = wide[start : start + BLOCK]
        unwarned.run(halves.halves.narrow, part)
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_half_is_widened_exactly_and_comes_back(dtype: np.dtype[Any]) -> None:
    every = EVERY.view(dtype)
    for part in (every[start : start + BLOCK] for start in range(0, every.size, BLOCK)):
        wide = halves.halves.widen(part, 1)
        with np.errstate(all="ignore"):
            want = part.astype(np.float32)
        np.testing.assert_array_equal(wide, want)
        assert np.array_equal(np.signbit(wide), np.signbit(want))
    with np.errstate(all="ignore"):
        check(narrowed(every.astype(np.float32), dtype), every)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_narrowing_rounds_to_nearest_even(dtype: np.dtype[Any]) -> None:
    """At and beside each half and each number halfway between two, subnormal and overflowing ones too."""
    with np.errstate(all="ignore"):
        values = EVERY.view(dtype).astype(np.float32).view(np.uint32)
        steps = [1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
        between = np.concatenate([values + np.uint32(step) for step in steps]).view(np.float32)
        small = np.arange(1 << 12, dtype=np.float32) * np.float32(2.0**-26)  # around float16's subnormals
        beside = [np.nextafter(small, np.float32(to)) for to in (-1, 1)]
        wide = np.concatenate([between, small, -small, *beside])
        want = wide.astype(dtype)
        calm = wide[np.abs(wide) < 65536]  # no block has an infinity, which would send it all another way
        want_calm = calm.astype(dtype)
    check(narrowed(wide, dtype), want)
    check(narrowed(calm, dtype), want_calm)


@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20), calm=st.booleans())
@settings(max_examples=60)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_narrowing_any_float(dtype: np.dtype[Any], bits: list[int], calm: bool) -> None:
    wide = np.resize(np.array(bits, np.uint32), BLOCK).view(np.float32)
    if calm:
        wide = np.where(np.abs(wide) < 65536, wide, np.float32(1))
    with np.errstate(all="ignore"):
        check(narrowed(wide, dtype), wide.astype(dtype))


@pytest.mark.parametrize("op", list(UFUNCS), ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_half_with_many_others(dtype: np.dtype[Any], op: ReduceOp) -> None:
    left = EVERY.view(dtype)
    out = np.empty_like(left)
    near = np.arange(0, 24)
    for shift in (*near, *(near << 7), *(near << 10), 0x8000, 0x8001, 0x83FF, *range(5, 65536, 2977)):
        right = (EVERY + np.uint16(shift & 0xFFFF)).view(dtype)
        combine(left, right, out, op)
        check(out, expected(left, right, op))


def values(dtype: np.dtype[Any], count: int, seed: int, specials: bool) -> Array:
    rng = np.random.default_rng(seed)
    array: Array = (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 3, count)).astype(dtype)
    if specials and count:
        some = rng.integers(0, count, 1 + count // 5000)
        array.view(np.uint16)[some] = rng.integers(0, 1 << 16, some.size)
    return array


@pytest.mark.slow(COSTLY)
@given(
    dtype=st.sampled_from(DTYPES),
    op=st.sampled_from(list(UFUNCS)),
    near=st.sampled_from([0, 4096, 8192, BLOCK, 2 * BLOCK, 3 * BLOCK]),
    more=st.integers(-2, 3),
    step=st.sampled_from([1, 1, 2, -1]),
    form=st.sampled_from(["left", "right", "separate"]),
    read_only=st.booleans(),
    offset=st.sampled_from([0, 1, 2, 6]),
    seed=st.integers(0, 1000),
    specials=st.booleans(),
)
@settings(max_examples=150)
@example(FLOAT16, ReduceOp.SUM, 2 * BLOCK, 1, 1, "separate", True, 0, 1, True)
@example(BFLOAT16, ReduceOp.SUM, 2 * BLOCK, 1, 1, "left", True, 2, 1, True)
def test_any_length_placement_and_target(
    dtype: np.dtype[Any],
    op: ReduceOp,
    near: int,
    more: int,
    step: int,
    form: str,
    read_only: bool,
    offset: int,
    seed: int,
    specials: bool,
) -> None:
    count = max(0, near + more)

    def place(array: Array) -> Array:
        memory = np.empty(count * 2 * abs(step) + offset + 64, np.uint8)
        placed: Array = memory[offset : offset + count * 2 * abs(step)].view(dtype)[::step]
        placed[...] = array
        return placed

    left, right = (place(values(dtype, count, seed + side, specials)) for side in (0, 1))
    want = expected(left, right, op)
    out = {"left": left, "right": right, "separate": place(np.zeros(count, dtype))}[form]
    for operand in (left, right):
        operand.flags.writeable = operand is out or not read_only
    before = {side: array.tobytes() for side, array in (("left", left), ("right", right)) if array is not out}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        combine(left, right, out, op)
    check(out, want)
    for side, array in (("left", left), ("right", right)):
        assert array is out or array.tobytes() == before[side]


@pytest.mark.parametrize("count", [0, 3, 8191, 8192, BLOCK + 9000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scaling_and_averaging(dtype: np.dtype[Any], count: int) -> None:
    for specials in (False, True):
        array = values(dtype, count, 7, specials)
        with np.errstate(all="ignore"):
            wide = array.astype(np.float32)
            scaled = (wide * np.float32(1 / 3)).astype(dtype)
            divided = (wide / np.float32(3)).astype(dtype)
        result = array.copy()
        scale(result, 1 / 3)
        check(result, scaled)
        result = array.copy()
        finish(result, ReduceOp.AVG, 3, one_nan=True)
        check(result, divided)
        nans = result.view(np.uint16)[np.isnan(result)]
        assert len(set(nans.tolist())) <= 1
