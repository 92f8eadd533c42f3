from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aiodist.kernels.cost import cost_ns
from aiodist.types import BFLOAT16, DTYPES, ReduceOp


@given(small=st.integers(0, 1 << 30), more=st.integers(0, 1 << 30), dtype=st.sampled_from(DTYPES))
def test_more_bytes_cost_more(small: int, more: int, dtype: np.dtype[np.generic]) -> None:
    assert 0 < cost_ns(small, dtype, ReduceOp.MAX) <= cost_ns(small + more, dtype, ReduceOp.MAX)


def test_halves_leave_the_loop_long_before_floats() -> None:
    nbytes = 512 * 1024
    assert cost_ns(nbytes, np.dtype(np.float32), ReduceOp.SUM) < 200_000
    assert cost_ns(nbytes, BFLOAT16, ReduceOp.SUM) > 200_000
    assert cost_ns(nbytes, np.dtype(np.float16), ReduceOp.SUM) > cost_ns(nbytes, BFLOAT16, ReduceOp.SUM)
    assert cost_ns(64 << 20, np.dtype(np.float32), ReduceOp.SUM) > 200_000
