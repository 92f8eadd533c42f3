from __future__ import annotations

import array

import numpy as np

from aiodist.backends.arrays.family import like, wrap
from aiodist.base.types import BFLOAT16


def test_numpy_in_numpy_out() -> None:
    made = like(np.ones(3, np.int16), (2, 3))
    assert type(made) is np.ndarray and made.dtype == np.int16 and made.shape == (2, 3)
    assert made.flags.c_contiguous and made.flags.writeable


def test_buffers_give_arrays() -> None:
    made = like(array.array("f", [1]), ())
    assert type(made) is np.ndarray and made.dtype == np.float32 and made.shape == ()


def test_the_dtype_may_be_given() -> None:
    assert like(b"", (1,), BFLOAT16).dtype == BFLOAT16


def test_wrap_leaves_arrays_alone() -> None:
    data = np.ones(3)
    assert wrap(np.zeros(1), data) is data
