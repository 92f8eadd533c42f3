from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.arrays.kernels.cost import cost_ns
from aiodist.base.types import BFLOAT16, DTYPES, ReduceOp


@given(small=st.integers(0, 1 << 30), more=st.integers(0, 1 << 30), dtype=st.sampled_from(DTYPES))
def test_more_bytes_cost_more(small: int, more: int, dtype: np.dtype[np.generic]) -> None:
    assert 0 < cost_ns(small, dtype, ReduceOp.MAX) <= cost_ns(small + more, dtype, ReduceOp.MAX)


@pytest.mark.parametrize("torch", [True, False])
def test_halves_leave_the_loop_long_before_floats(torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch:
        monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch", sys))
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    float16 = np.dtype(np.float16)
    nbytes = 512 * 1024
    assert cost_ns(nbytes, np.dtype(np.float32), ReduceOp.SUM) < 200_000
    assert cost_ns(nbytes, BFLOAT16, ReduceOp.SUM) > 200_000
    assert cost_ns(nbytes, float16, ReduceOp.SUM) >= cost_ns(nbytes, BFLOAT16, ReduceOp.SUM)
    assert cost_ns(nbytes, float16, ReduceOp.MIN) >= cost_ns(nbytes, BFLOAT16, ReduceOp.MIN)
    assert cost_ns(64 << 20, np.dtype(np.float32), ReduceOp.SUM) > 200_000
