from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist import _engine
from aiodist.backends.arrays.kernels.cost import cost_ns
from aiodist.base.types import BFLOAT16, DTYPES, ReduceOp


@given(small=st.integers(0, 1 << 30), more=st.integers(0, 1 << 30), dtype=st.sampled_from(DTYPES))
def test_more_bytes_cost_more(small: int, more: int, dtype: np.dtype[np.generic]) -> None:
    assert 0 < cost_ns(small, dtype, ReduceOp.MAX) <= cost_ns(small + more, dtype, ReduceOp.MAX)


@pytest.mark.parametrize("compiled", [True, False])
def test_halves_leave_the_loop_before_floats(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "compiled", object() if compiled else None)
    float16, float32 = np.dtype(np.float16), np.dtype(np.float32)
    nbytes = 2 << 20
    assert cost_ns(nbytes, float32, ReduceOp.SUM) < 200_000
    assert cost_ns(nbytes, BFLOAT16, ReduceOp.SUM) > 200_000
    assert cost_ns(nbytes, float16, ReduceOp.SUM) >= cost_ns(nbytes, BFLOAT16, ReduceOp.SUM)
    assert cost_ns(nbytes, float16, ReduceOp.MIN) >= cost_ns(nbytes, BFLOAT16, ReduceOp.MIN)
    assert cost_ns(64 << 20, float32, ReduceOp.SUM) > 200_000
