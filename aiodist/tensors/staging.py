"""Contiguous stand-ins for strided tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.tensors.view import TensorView

Array = npt.NDArray[Any]


class Staged:
    """The elements of a tensor in C order: the tensor itself where it is contiguous, else a copy.

    Wires and kernels see `vector` and `flat` only. What was received into a copy reaches the tensor
    with `write_back`; where there is no copy that does nothing. The stage owns the copy; whoever runs
    the operation holds the stage until it is done.

    Args:
        view: the tensor.
        load: whether its present elements matter; False leaves a copy uninitialised.
    """

    __slots__ = ("_array", "copied", "view")

    def __init__(self, view: TensorView, *, load: bool = True) -> None:
        self.view = view
        self.copied = not view.contiguous
        self._array = view.array
        if self.copied:
            self._array = np.empty(view.shape, view.dtype)
            if load:
                np.copyto(self._array, view.array)

    @property
    def vector(self) -> Array:
        """The elements as a contiguous 1-D array."""
        return self._array.reshape(-1)

    @property
    def flat(self) -> memoryview:
        """The elements as bytes."""
        return self.vector.view(np.uint8).data

    def write_back(self) -> None:
        """Bring the copy's elements into the tensor."""
        if self.copied:
            np.copyto(self.view.array, self._array)
