from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from aiodist.backends.arrays.kernels.copy import copy_into
from aiodist.testing.programs import same_bits


@pytest.mark.parametrize("dtype", [np.bool_, np.int16, ml_dtypes.bfloat16, np.float64, np.complex128])
def test_copies_any_strides(dtype: type) -> None:
    src: npt.NDArray[Any] = (np.arange(24) % 7).astype(dtype).reshape(4, 6)[::2, ::-2]
    dst: npt.NDArray[Any] = np.zeros((6, 2), dtype).T[:, ::2]
    assert dst.shape == (2, 3)
    copy_into(dst, src)
    assert same_bits(dst, src)


def test_overlapping_arrays() -> None:
    memory = np.arange(6)
    copy_into(memory[1:], memory[:-1])
    assert memory.tolist() == [0, 0, 1, 2, 3, 4]


def test_empty_and_single() -> None:
    copy_into(np.empty((0, 3)), np.empty((0, 3)))
    dst = np.zeros(())
    copy_into(dst, np.array(2.0))
    assert dst == 2.0


@pytest.mark.parametrize(("shape", "dtype"), [((1,), np.float32), ((3,), np.float64)])
def test_nothing_is_broadcast_or_cast(shape: tuple[int, ...], dtype: type) -> None:
    with pytest.raises(ValueError, match="cannot copy"):
        copy_into(np.zeros(3, np.float32), np.zeros(shape, dtype))
