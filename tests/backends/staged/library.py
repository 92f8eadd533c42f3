"""The tensors of the stand-in for CuPy, as `tests.gpu` takes tensors of libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.testing.programs import laid_out
from tests.backends.cuda.stand_in import Tensor

Array = npt.NDArray[Any]


class StandIn:
    """All dtypes and layouts."""

    def has(self, dtype: np.dtype[Any]) -> bool:
        return True

    def put(self, array: Array, layout: str = "C") -> Tensor:
        return Tensor(laid_out(array, layout))

    def get(self, tensor: Tensor) -> Array:
        found: Array = tensor.array
        return found
