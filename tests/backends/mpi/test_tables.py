"""Names for MPI, tags, and pieces of what is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.arrays.kernels import combine
from aiodist.backends.mpi import tables
from aiodist.base.types import BFLOAT16, DTYPES, ReduceOp
from aiodist.testing.programs import operations

HALVES = (np.dtype(np.float16), BFLOAT16)
MEANING: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_datatype_has_the_size_of_the_elements(dtype: np.dtype[Any]) -> None:
    sizes = {"FLOAT": 4, "DOUBLE": 8, "C_FLOAT_COMPLEX": 8, "C_DOUBLE_COMPLEX": 16}
    sizes |= {f"{sign}INT{bits}_T": bits // 8 for sign in ("", "U") for bits in (8, 16, 32, 64)}
    name = tables.datatype(dtype)
    assert sizes[name] == dtype.itemsize
    assert name.startswith("U") == (dtype.kind in "ub" or tables.wide(ReduceOp.MAX, dtype) is not None)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in HALVES], ids=str)
def test_operator_means_what_the_op_means(dtype: np.dtype[Any]) -> None:
    pair = [[0, 0, 1, 1], [0, 1, 0, 1]] if dtype.kind == "b" else [[6, 2, 7, 1], [3, 5, 7, 4]]
    left, right = (np.array(values, dtype) for values in pair)
    bits = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    for op in set(operations(dtype)) - {ReduceOp.AVG}:
        expected = np.empty(4, dtype)
        combine(left, right, expected, op)
        meaning = MEANING[tables.operator(op, dtype)]
        assert np.array_equal(meaning(left.view(bits), right.view(bits)).view(dtype), expected), op


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_halves_and_sums_of_small_integers_are_widened(dtype: np.dtype[Any]) -> None:
    for op in operations(dtype):
        found = tables.wide(op, dtype)
        if dtype in HALVES:
            assert found == np.float32, op
        elif dtype.name in ("int8", "uint8", "int16", "uint16") and op is ReduceOp.SUM:
            assert found == np.uint32
        else:
            assert found is None, op


@given(number=st.integers(0, 2**64), highest=st.integers(32767, 2**31 - 1))
def test_tags_are_those_of_the_library_and_never_that_of_exchanges(number: int, highest: int) -> None:
    tag = tables.message_tag(number, highest)
    assert 0 < tag <= highest
    assert tag != tables.message_tag(number + highest - 1, highest)
    assert tag == tables.message_tag(number + highest, highest)
    assert tag != tables.EXCHANGE_TAG


@given(context=st.integers(0, 2**64 - 1), highest=st.integers(32767, 2**31 - 1))
def test_group_tag_is_one_of_the_library(context: int, highest: int) -> None:
    assert 0 <= tables.group_tag(context, highest) <= highest


def test_groups_have_tags_of_their_own() -> None:
    assert len({tables.group_tag(context, 32767) for context in range(7, 32775)}) == 32768


@given(count=st.integers(0, 300), most=st.integers(1, 50))
def test_pieces_are_all_of_it_in_order(count: int, most: int) -> None:
    cut = [list(range(count))[piece] for piece in tables.pieces(count, most)]
    assert [number for piece in cut for number in piece] == list(range(count))
    assert all(0 < len(piece) <= most for piece in cut)
    assert len(cut) == -(-count // most)
