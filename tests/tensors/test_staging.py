from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.tensors import Staged, view


def test_a_contiguous_tensor_is_its_own_stage() -> None:
    data = np.arange(6.0).reshape(2, 3)
    staged = Staged(view(data, writable=True))
    assert not staged.copied
    staged.vector[4] = 40
    assert data[1, 1] == 40
    staged.write_back()


@given(
    shape=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)),
    axes=st.permutations([0, 1, 2]),
    step=st.sampled_from([1, 2, -1, -3]),
)
@pytest.mark.parametrize("dtype", [np.int32, ml_dtypes.bfloat16, np.complex128])
def test_strided_tensors_go_and_come_back(
    dtype: type, shape: tuple[int, int, int], axes: list[int], step: int
) -> None:
    data: npt.NDArray[Any] = (
        (np.arange(np.prod(shape)) % 100).astype(dtype).reshape(shape).transpose(axes)[::step]
    )
    want = np.ascontiguousarray(data)
    staged = Staged(view(data, writable=True))
    assert bytes(staged.flat) == want.tobytes() == staged.vector.tobytes()
    staged.vector[...] = np.arange(want.size).astype(dtype)
    staged.write_back()
    assert data.tobytes() == np.arange(want.size).astype(dtype).tobytes()


def test_without_load_only_the_way_back_counts() -> None:
    data = np.zeros((4, 4))[:, ::2]
    staged = Staged(view(data, writable=True), load=False)
    assert staged.copied
    staged.vector[...] = np.arange(8)
    assert not data.any()
    staged.write_back()
    assert data.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
