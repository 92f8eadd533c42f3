"""Calls, their signatures, and which reductions have a meaning."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiodist as dist
from aiodist.base.types import (
    AS,
    DTYPE_CODES,
    DTYPES,
    NO_ROOT,
    SIGNATURE_BYTES,
    Call,
    Kind,
    ReduceOp,
    agree,
    check_dtype,
    check_reduction,
    describe_signature,
)

CALLS = st.builds(
    Call,
    kind=st.sampled_from(Kind),
    seq=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    reduce=st.none() | st.sampled_from(ReduceOp),
    root=st.integers(NO_ROOT, 2),
    offer=st.integers(0, 3),
    detail=st.sampled_from(["", "ranks [0]", "ranks [0, 1]"]),
)


@given(a=CALLS, b=CALLS)
def test_signatures_agree_exactly_when_calls_do(a: Call, b: Call) -> None:
    same = dataclasses.replace(a, offer=0) == dataclasses.replace(b, offer=0)
    assert agree(a.signature, b.signature) is same
    assert (a.signature == b.signature) is (a == b)


@given(call=CALLS, data=st.data())
def test_one_changed_field_is_enough(call: Call, data: st.DataObject) -> None:
    field = data.draw(
        st.sampled_from([f.name for f in dataclasses.fields(Call) if f.init and f.name != "offer"])
    )
    value = data.draw(CALLS.map(lambda other: getattr(other, field)))
    other = dataclasses.replace(call, **{field: value})
    assert agree(call.signature, other.signature) is (value == getattr(call, field))


@given(call=CALLS)
def test_signature_has_32_bytes_and_the_offer_is_left_aside(call: Call) -> None:
    assert len(call.signature) == SIGNATURE_BYTES == 32
    offering = dataclasses.replace(call, offer=call.offer ^ 1)
    assert offering.signature != call.signature
    assert agree(offering.signature, call.signature)


def test_signature_tells_large_numbers_apart() -> None:
    a = Call(Kind.all_reduce, 2**40, DTYPES[11], (2**33,))
    b = Call(Kind.all_reduce, 2**40, DTYPES[11], (2**33 + 1,))
    c = Call(Kind.all_reduce, 2**40 + 1, DTYPES[11], (2**33,))
    assert len({a.signature, b.signature, c.signature}) == 3


F32 = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call(Kind.all_reduce, 0, F32, (3, 4), ReduceOp.SUM), "all_reduce(float32[3, 4], SUM)"),
        (Call(Kind.broadcast, 0, F32, (), None, 2), "broadcast(a single float32, src=2)"),
        (Call(Kind.reduce, 0, F32, (5,), ReduceOp.MAX, 1), "reduce(float32[5], MAX, dst=1)"),
        (Call(Kind.send, 0, F32, (5,), None, 1), "send(float32[5], dst=1)"),
        (Call(Kind.recv, 0, F32, (5,), None, 1), "recv(float32[5], src=1)"),
        (Call(Kind.barrier, 0, F32), "barrier()"),
        (Call(Kind.new_group, 0, F32, detail="ranks [0, 2]"), "new_group(ranks [0, 2])"),
        (
            Call(Kind.broadcast, 0, F32, (1,), None, 0, detail=f"{AS}scatter_object(src=0)"),
            "scatter_object(src=0)",
        ),
    ],
)
def test_describe(call: Call, words: str) -> None:
    assert call.describe() == words


@given(call=CALLS)
def test_signature_of_a_peer_is_described_with_its_count(call: Call) -> None:
    expected = dataclasses.replace(call, shape=(call.count,), detail="").describe()
    assert describe_signature(call.signature) == expected


@pytest.mark.parametrize(
    ("kind", "root", "words"),
    [
        (Kind.broadcast, 3, "broadcast_object(src=3)"),
        (Kind.broadcast, 0, "scatter_object(src=0)"),
        (Kind.broadcast, 0, "pending_joins()"),
        (Kind.all_gather, NO_ROOT, "gather_object(dst=7)"),
        (Kind.all_gather, NO_ROOT, "split()"),
        (Kind.all_reduce, NO_ROOT, "agree()"),
        (Kind.all_gather, NO_ROOT, "all_reduce_quantized(float32[9], SUM)"),
    ],
)
def test_a_part_of_a_peers_call_is_described_as_that_call(kind: Kind, root: int, words: str) -> None:
    for shape in ((), (5,)):
        part = Call(kind, 2, F32, shape, None, root, 0, f"{AS}{words}")
        said = describe_signature(part.signature)
        assert said == words or ("quantized" in words and "all_reduce_quantized" in said)


@given(st.binary(min_size=SIGNATURE_BYTES, max_size=SIGNATURE_BYTES))
def test_any_32_bytes_are_described(signature: bytes) -> None:
    assert describe_signature(signature)


def test_count_and_bytes() -> None:
    call = Call(Kind.all_reduce, 0, F32, (3, 4))
    assert (call.count, call.nbytes) == (12, 48)
    assert Call(Kind.all_reduce, 0, F32, (3, 0)).count == 0
    assert Call(Kind.all_reduce, 0, F32).count == 1


def test_dtype_codes_are_part_of_the_protocol() -> None:
    assert [dtype.name for dtype in DTYPES] == [
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
    assert [check_dtype(dtype) for dtype in DTYPES] == list(range(len(DTYPES)))
    assert len(DTYPE_CODES) == len(DTYPES)


@pytest.mark.parametrize("name", ["U3", "O", "datetime64[s]", "longdouble", ">f4"])
def test_other_dtypes_are_refused(name: str) -> None:
    with pytest.raises(dist.UsageError, match=r"cannot be communicated\. Convert to one of: bool, uint8"):
        check_dtype(np.dtype(name))


INTEGERS = [np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
COMPLEX = [np.complex64, np.complex128]
ALL = {op for op in ReduceOp if op.name != "PREMUL_SUM"}  # which needs a factor
BITWISE = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR}


@pytest.mark.parametrize(
    ("types", "allowed"),
    [
        (INTEGERS, ALL - {ReduceOp.AVG}),
        (FLOATS, ALL - BITWISE),
        (COMPLEX, ALL - BITWISE - {ReduceOp.MIN, ReduceOp.MAX}),
    ],
)
def test_which_reductions_have_a_meaning(types: list[Any], allowed: set[ReduceOp]) -> None:
    for scalar in types:
        dtype = np.dtype(scalar)
        for op in ALL:
            if op in allowed:
                assert check_reduction(op, dtype) is op
            else:
                with pytest.raises(dist.UsageError, match=f"^{op.name} of {dtype.name}"):
                    check_reduction(op, dtype)


@pytest.mark.parametrize("op", ["SUM", 1, None])
def test_an_op_is_a_reduce_op(op: Any) -> None:
    with pytest.raises(dist.UsageError, match="must be a ReduceOp"):
        check_reduction(cast("ReduceOp", op), F32)
