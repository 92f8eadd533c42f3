"""Results of the same kind as the arguments: torch in, torch out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.tensors.view import view
from aiodist.types import BFLOAT16

Array = npt.NDArray[Any]


def wrap(tensor: Any, array: Array) -> Any:
    """`array` as an object of `tensor`'s family, on the same memory: a torch tensor if `tensor` is one,
    else the array itself. The result keeps the array alive."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, getattr(torch, "Tensor", ())):
        return array
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def like(tensor: Any, shape: Sequence[int], dtype: np.dtype[Any] | None = None) -> Any:
    """Allocate an uninitialised, contiguous result of `tensor`'s family.

    Args:
        tensor: the argument whose family counts.
        shape: of the result.
        dtype: of the result; the tensor's by default.
    """
    if dtype is None:
        dtype = view(tensor, writable=False).dtype
    return wrap(tensor, np.empty(tuple(shape), dtype))
