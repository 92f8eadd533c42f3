"""Copies between arrays of the same shape and dtype, strided or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def copy_into(dst: Array, src: Array) -> None:
    """`dst[...] = src`, bit for bit, whatever the strides of either; they may overlap.

    Raises:
        ValueError: shapes or dtypes differ. Nothing is broadcast or cast here: it would hide a mistake.
    """
    if dst.shape != src.shape or dst.dtype != src.dtype:
        raise ValueError(f"cannot copy {src.dtype}{list(src.shape)} into {dst.dtype}{list(dst.shape)}")
    np.copyto(dst, src)
