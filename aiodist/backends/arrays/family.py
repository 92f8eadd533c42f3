"""Results of the same kind as the arguments: torch in, torch out."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays.device import device_array, torch_of
from aiodist.backends.arrays.view import view
from aiodist.base.errors import UsageError, shown
from aiodist.base.types import BFLOAT16

Array = npt.NDArray[Any]

MAX_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32


def wrap(tensor: Any, array: Array) -> Any:
    """`array` as an object of `tensor`'s family, on the same memory: a torch tensor if `tensor` is one,
    else the array itself. The result keeps the array alive."""
    torch = torch_of(tensor)
    if torch is None:
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
    seen = device_array(tensor, "tensor") if type(tensor) is not np.ndarray else None
    if dtype is None:
        dtype = view(tensor, writable=False, device=True).dtype
    check_shape(tuple(shape), dtype)
    if seen is not None:
        return _on_device(tensor, seen.cuda, tuple(shape), dtype)
    try:
        return wrap(tensor, np.empty(tuple(shape), dtype))
    except MemoryError:
        raise UsageError(
            f"no memory for a result of shape {shown(tuple(shape))}, {dtype.name}",
            hint="Pass an array for it as out=, or smaller tensors one after the other",
        ) from None


def check_shape(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse more dimensions than arrays have, and more bytes than an address space has."""
    if len(shape) > MAX_DIMENSIONS:
        raise UsageError(
            f"an array of {len(shape)} dimensions is needed, and NumPy's have {MAX_DIMENSIONS} at most",
            hint="Pass a tensor of fewer: reshape(-1)",
        )
    if math.prod(extent for extent in shape if extent) * dtype.itemsize > sys.maxsize:
        raise UsageError(f"an array of shape {shown(shape)} is larger than any memory")


def _on_device(tensor: Any, index: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A torch tensor where `tensor` is one, else a CuPy array, on the same device."""
    if torch := torch_of(tensor):
        return torch.empty(shape, dtype=getattr(torch, dtype.name), device=tensor.device)
    cupy: Any = sys.modules.get("cupy")  # a program that communicates such tensors has imported it
    if cupy is None:
        raise UsageError(
            f"a new {type(tensor).__name__} for the result cannot be made here", hint="Pass it as out="
        )
    with cupy.cuda.Device(index):
        return cupy.empty(shape, dtype)
