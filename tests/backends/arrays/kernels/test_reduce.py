from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.backends.arrays.kernels.halves import BLOCK
from aiodist.backends.arrays.kernels.reduce import combine, finish, reduce_into
from aiodist.base.errors import UsageError
from aiodist.base.types import BFLOAT16, DTYPES, ReduceOp, check_reduction
from aiodist.testing.programs import same_bits
from tests.levels import COSTLY, few

Array = npt.NDArray[Any]


def meaningful(op: ReduceOp, dtype: np.dtype[Any]) -> bool:
    try:
        check_reduction(op, dtype)
    except UsageError:
        return False
    return True


CASES = [(op, dtype) for op in ReduceOp for dtype in DTYPES if meaningful(op, dtype)]
COUNTS = (0, 1, 37, BLOCK - 1, BLOCK, 2 * BLOCK + 3)
FLOATS = [np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]


def values(dtype: np.dtype[Any], count: int, seed: int) -> Array:
    """Random values of a dtype's whole range, integers and halves included."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    if dtype.kind == "c":
        return (rng.standard_normal(count) + 1j * rng.standard_normal(count)).astype(dtype)
    return (rng.standard_normal(count) * 10).astype(dtype)


def expected(left: Array, right: Array, op: ReduceOp) -> Array:
    ufunc: Any = {
        ReduceOp.SUM: np.add,
        ReduceOp.AVG: np.add,
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
        ReduceOp.BAND: np.bitwise_and,
        ReduceOp.BOR: np.bitwise_or,
        ReduceOp.BXOR: np.bitwise_xor,
    }[op]
    if left.dtype in FLOATS[:2]:
        wide: Array = ufunc(left.astype(np.float32), right.astype(np.float32))
        return wide.astype(left.dtype)
    if left.dtype.kind == "c" and op is ReduceOp.PRODUCT:
        product = np.empty_like(left)
        product.real = left.real * right.real - left.imag * right.imag
        product.imag = left.real * right.imag + left.imag * right.real
        return product
    result: Array = ufunc(left, right)
    return result


@pytest.mark.parametrize("op", list(ReduceOp), ids=lambda op: op.name)
def test_equals_numpy_bit_for_bit(op: ReduceOp) -> None:
    dtypes = [dtype for dtype in DTYPES if meaningful(op, dtype)]
    for dtype, count, src_left in itertools.product(dtypes, COUNTS, (True, False)):
        dst, src = values(dtype, count, 1), values(dtype, count, 2)
        before = src.copy()
        want = expected(src, dst, op) if src_left else expected(dst, src, op)
        reduce_into(dst, src, op, src_left=src_left)
        assert same_bits(dst, want), f"{dtype.name}[{count}], src_left={src_left}"
        assert same_bits(src, before)


@pytest.mark.parametrize("op", list(ReduceOp), ids=lambda op: op.name)
def test_combining_into_either_operand_or_a_third_array(op: ReduceOp) -> None:
    for dtype, count in itertools.product([d for d in DTYPES if meaningful(op, d)], COUNTS):
        left, right = values(dtype, count, 1), values(dtype, count, 2)
        want = expected(left, right, op)
        out = np.zeros_like(left)
        combine(left, right, out, op)
        assert same_bits(out, want), f"{dtype.name}[{count}]"
        for target in (0, 1):
            operands = [left.copy(), right.copy()]
            combine(operands[0], operands[1], operands[target], op)
            assert same_bits(operands[target], want), f"{dtype.name}[{count}] into {target}"
            assert same_bits(operands[1 - target], (right, left)[target])


def placed(source: Array, offset: int) -> Array:
    """A copy that begins `offset` bytes after a 64-byte boundary; odd ones are not even aligned."""
    memory = np.empty(source.nbytes + 64 + offset, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    copy: Array = memory[start : start + source.nbytes].view(source.dtype)
    copy[:] = source
    return copy


@pytest.mark.slow(COSTLY)
@given(
    case=st.sampled_from(CASES),
    count=st.integers(0, 70),
    cut=st.integers(0, 70),
    offsets=st.tuples(*[st.sampled_from([0, 1, 4, 8, 12, 16, 24, 40])] * 2),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=400)
def test_both_ranks_get_the_same_bits(
    case: tuple[ReduceOp, np.dtype[Any]], count: int, cut: int, offsets: tuple[int, int], seed: int
) -> None:
    """Law 3, where partners in recursive doubling reduce each for itself."""
    op, dtype = case
    low, high = values(dtype, count, seed), values(dtype, count, seed + 1)
    if dtype.kind not in "biu":
        rng = np.random.default_rng(seed)
        for side in (low, high):
            some = rng.random(count) < 0.3
            side[some] = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-7, 65504.0], some.sum()).astype(
                dtype
            )
    first, second = low.copy(), placed(high, offsets[0])
    reduce_into(first, high, op, src_left=False)
    for part in (slice(0, cut), slice(cut, None)):
        reduce_into(second[part], placed(low, offsets[1])[part], op, src_left=True)
    finish(first, op, 2, one_nan=True)
    finish(second, op, 2, one_nan=True)
    assert same_bits(first, second)


@pytest.mark.slow(COSTLY)
@given(bits=st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 65535)), min_size=1, max_size=50))
@settings(max_examples=200)
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: d.name)
@pytest.mark.parametrize("op", few([ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN], [ReduceOp.SUM]))
def test_halves_of_any_bits_round_once(
    dtype: np.dtype[Any], op: ReduceOp, bits: list[tuple[int, int]]
) -> None:
    """Subnormals, infinities and NaN included; and rounding through float32 is rounding once."""
    dst, src = (np.array(column, np.uint16).view(dtype) for column in zip(*bits, strict=True))
    with np.errstate(all="ignore"):
        exact = {ReduceOp.SUM: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum}[op](
            dst.astype(np.float64), src.astype(np.float64)
        )
        want = exact.astype(np.float32).astype(dtype)  # a sum or product of halves is exact in float64
    reduce_into(dst, src, op, src_left=False)
    np.testing.assert_array_equal(dst.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_overflow_and_nan_are_answers_not_warnings(dtype: np.dtype[Any]) -> None:
    top = float(ml_dtypes.finfo(dtype).max)
    dst = np.array([top, np.inf, np.nan], dtype)
    reduce_into(dst, np.array([top, -np.inf, 1], dtype), ReduceOp.SUM, src_left=True)
    assert np.isinf(dst[0]) and np.isnan(dst[1]) and np.isnan(dst[2])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
def test_nan_wins_min_and_max(dtype: np.dtype[Any], op: ReduceOp) -> None:
    dst, src = np.array([np.nan, 1, 2], dtype), np.array([1, np.nan, 3], dtype)
    reduce_into(dst, src, op, src_left=True)
    assert np.isnan(dst[0]) and np.isnan(dst[1]) and dst[2] == (2 if op is ReduceOp.MIN else 3)


def test_integers_wrap() -> None:
    dst = np.array([255, 1], np.uint8)
    reduce_into(dst, np.array([2, 2], np.uint8), ReduceOp.SUM, src_left=True)
    assert dst.tolist() == [1, 3]


def test_bool_sum_is_or_and_product_is_and() -> None:
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for op, want in (
        (ReduceOp.SUM, [0, 1, 1, 1]),
        (ReduceOp.PRODUCT, [0, 0, 0, 1]),
        (ReduceOp.BXOR, [0, 1, 1, 0]),
    ):
        dst = a.copy()
        reduce_into(dst, b, op, src_left=True)
        assert dst.tolist() == [bool(v) for v in want]


def test_a_read_only_source_is_enough() -> None:
    src = np.frombuffer(np.arange(4, dtype=np.float32).tobytes(), np.float32)
    dst = np.ones(4, np.float32)
    reduce_into(dst, src, ReduceOp.SUM, src_left=True)
    assert dst.tolist() == [1, 2, 3, 4]


def test_threads_do_not_share_scratch() -> None:
    def job(seed: int) -> bool:
        dst, src = values(BFLOAT16, 3 * BLOCK, seed), values(BFLOAT16, 3 * BLOCK, seed + 1)
        want = expected(src, dst, ReduceOp.SUM)
        reduce_into(dst, src, ReduceOp.SUM, src_left=True)
        return dst.tobytes() == want.tobytes()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(job, range(24)))


@pytest.mark.parametrize("count", [0, 5, BLOCK + 1])
def test_finish_divides_an_average(count: int) -> None:
    for dtype in (*FLOATS, np.dtype(np.complex64)):
        check_average(dtype, count)


def check_average(dtype: np.dtype[Any], count: int) -> None:
    total = values(dtype, count, 3)
    wide = total.astype(np.float32) if dtype in FLOATS[:2] else total
    want = (wide / 3).astype(dtype)
    finish(total, ReduceOp.AVG, 3)
    assert total.dtype == dtype
    assert same_bits(total, want)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MAX])
def test_finish_leaves_other_operations_alone(op: ReduceOp) -> None:
    total = np.arange(4, dtype=np.int32)
    finish(total, op, 3)
    assert total.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.complex64)], ids=lambda d: d.name)
def test_finish_makes_all_nans_one(dtype: np.dtype[Any]) -> None:
    total = np.array([1, np.nan, np.inf, -np.nan], dtype)
    if dtype.kind == "c":
        total[2] = complex(-np.nan, 5)
    finish(total, ReduceOp.SUM, 2, one_nan=True)
    if dtype.kind == "c":
        assert total[2].imag == 5
    assert total[0] == 1 and len({value.tobytes() for value in total.real[np.isnan(total.real)]}) == 1
